"""Experiments: one YAML file with a model and its jobs, and a folder that says what is done."""
