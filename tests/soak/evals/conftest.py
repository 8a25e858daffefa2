"""Fixtures of the worker tests."""

from tests.integration.worker.conftest import bench, engine

__all__ = ["bench", "engine"]
