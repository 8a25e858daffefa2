"""Fixtures of the engine tests."""

from tests.integration.worker.engine.conftest import engine_of

__all__ = ["engine_of"]
