"""Insertion of jobs: admission, idempotency, bulk inserts."""
