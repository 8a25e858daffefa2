"""Redis: Celery's settings, wake messages, live text, rate limits."""
