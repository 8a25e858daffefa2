"""Tokens: padding, sampling, stopping, log probabilities."""
