"""Analyses of stored sessions: specs of their jobs, and their results."""
