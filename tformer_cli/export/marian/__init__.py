"""A model as a folder of transformers' Marian, and such a folder as a model."""
