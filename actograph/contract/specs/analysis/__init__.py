"""Specs of analysis jobs: one file per kind."""
