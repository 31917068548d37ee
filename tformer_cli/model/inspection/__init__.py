"""What can be seen of a network: its size, its cost, where it looks."""
