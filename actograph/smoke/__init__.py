"""The smoke test of a running service."""
