"""Redis: wake-ups through Celery, and text of running samples."""
