# Generated from aio/resources/__init__.py by `python actograph/client/unasync.py`: edit that file.
"""One class per resource of the service: `client.jobs`, `client.sessions`, and the others."""
