"""What a layer is made of, each block under one thought."""
