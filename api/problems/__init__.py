"""Errors as problem+json, and the validation of requests."""
