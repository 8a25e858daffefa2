"""What every request passes first: its id, and the limits of its body."""
