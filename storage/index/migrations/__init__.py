"""Alembic migrations of the index; see storage/migrate.py."""
