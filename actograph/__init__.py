"""Actograph: evaluation, activation capture, queue and store in one self-hosted service.

This package is the ground floor: the contract shared by every room, the HTTP client
and the command line. It never imports torch, fastapi, celery or sqlalchemy.
"""

__version__ = "0.1.0"
