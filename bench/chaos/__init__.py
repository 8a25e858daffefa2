"""Faults in the middle of a drain: `python -m bench.chaos`."""
