"""Answers with many bytes: downloads, slices of tensors, event streams."""
