"""Metrics of an evaluation and their errors."""
