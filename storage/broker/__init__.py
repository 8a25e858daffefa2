"""Redis: wake-ups through Celery, text of running samples, rate limits."""
