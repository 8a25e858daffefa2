"""Insertion of jobs: admission and bulk inserts."""
