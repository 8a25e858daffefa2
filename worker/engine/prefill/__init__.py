"""Rows of given texts, layer by layer."""
