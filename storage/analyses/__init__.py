"""Analyses: the sessions that they read, and the state by which they resume."""
