"""The room that holds the model: Celery tasks, the drain, the engine, evaluations."""
