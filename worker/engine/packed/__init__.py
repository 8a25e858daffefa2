"""The forward pass over many requests at once, and what it needs of the weights."""
