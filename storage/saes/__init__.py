"""Stored SAEs: their format, their files, and their rows in the index."""
