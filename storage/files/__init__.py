"""Uploaded files and their rows."""
