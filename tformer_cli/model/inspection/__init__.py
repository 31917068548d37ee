"""Size, cost and attention maps of a network."""
