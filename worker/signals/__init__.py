"""Signals between the processes of a worker: stop files, exit statuses, last words."""
