"""Operators on tensors, each by the implementation that is fastest on its device."""
