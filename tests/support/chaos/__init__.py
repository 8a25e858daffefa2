"""Faults in the middle of a drain."""
