"""The processes of a worker: Celery app, child, heartbeat."""
