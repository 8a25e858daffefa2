"""Experiments: one YAML file for all stages, run once each and resumed after a break."""
