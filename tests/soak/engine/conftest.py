"""Fixtures of the engine tests."""

from tests.integration.worker.engine.conftest import (
    engine_of,
    keeping_sink,
    random_engine_of,
    reference,
    requests_for,
    way,
)

__all__ = ["engine_of", "keeping_sink", "random_engine_of", "reference", "requests_for", "way"]
