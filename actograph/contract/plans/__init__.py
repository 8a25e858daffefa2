"""Estimates of the memory and bytes that a job takes."""
