"""Evaluation programs as drivers: Inspect and lm-eval run on models of a service."""
