"""A smoke test of a running service, whose every step is checked and timed."""
