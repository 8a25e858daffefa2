"""Fixtures of the end-to-end tests."""

from tests.e2e.conftest import gone, module_up, postgres_and_s3, up, wait

__all__ = ["gone", "module_up", "postgres_and_s3", "up", "wait"]
