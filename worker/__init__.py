"""The worker: Celery app, drain, engine, evaluations."""
