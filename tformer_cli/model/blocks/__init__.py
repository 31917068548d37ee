"""Building blocks of a layer, one concept a file."""
