"""Interventions on a running model."""
