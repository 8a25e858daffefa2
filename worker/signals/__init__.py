"""Signals between the processes of a worker, and the end of one: stop file, exit statuses, last write."""
