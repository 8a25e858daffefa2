"""Tables of the index."""
