"""Evaluations: datasets and tools."""
