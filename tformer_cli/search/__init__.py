"""Decoding of token ids: a `Search` continues sequences by what a `Stepper` predicts."""
