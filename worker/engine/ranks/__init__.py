"""Tensor parallelism: one model shared by several processes, of which rank 0 leads."""
