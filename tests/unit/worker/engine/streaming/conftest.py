"""Small models in both engines, each built once."""

from collections.abc import Callable

import pytest

from tests.support.streaming_runs import CONFIGS, Pair, build
from worker.engine.streaming.engine import StreamingEngine
from worker.engine.streaming.slots import shapes_of


@pytest.fixture(scope="session")
def pair_of() -> Callable[[str], Pair]:
    """Name of an architecture -> a small model of it in both engines."""
    made: dict[str, Pair] = {}

    def make(name: str) -> Pair:
        if name not in made:
            traced = build(CONFIGS[name](), name)
            shapes = shapes_of(traced.model)
            assert shapes is not None
            made[name] = Pair(traced, StreamingEngine(traced.hooks, shapes))
        return made[name]

    return make


@pytest.fixture
def pair(pair_of: Callable[[str], Pair]) -> Pair:
    return pair_of("llama")
