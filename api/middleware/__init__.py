"""The first steps of every request: its id, and the limits of its body."""
