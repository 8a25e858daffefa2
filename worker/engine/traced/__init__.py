"""The forward under nnsight."""
