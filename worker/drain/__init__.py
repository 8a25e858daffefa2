"""Drains the queue: claims, leases, model changes, commits."""
