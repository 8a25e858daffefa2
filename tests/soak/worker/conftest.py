"""Fixtures of the worker tests."""

from tests.integration.worker.conftest import bench

__all__ = ["bench"]
