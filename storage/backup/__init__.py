"""Backup and restore of index and store together, while the service runs."""
