"""Continuous batching over an unmodified transformers model."""
