"""Analyses: commands on arrays in files."""
