"""Every architecture in turn, four of them in `make test`."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.architectures import ARCHITECTURES
from tests.support.engine_run import random_engine
from worker.engine.engine import Engine

#: run by `make test`: separate and joint projections, norms after the blocks, experts
QUICK = ("llama", "gpt2", "gemma2", "qwen3_moe")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "architecture" in metafunc.fixturenames:
        cases = [
            name if name in QUICK else pytest.param(name, marks=pytest.mark.soak) for name in ARCHITECTURES
        ]
        metafunc.parametrize("architecture", cases, scope="session")


@pytest.fixture(scope="session")
def fresh(engine_of: Callable[[str], Engine]) -> Callable[..., Engine]:
    """Key of an architecture, or a config -> a new engine; `changes` are fields of the config."""

    def make(shape: Any, **changes: Any) -> Engine:
        config = ARCHITECTURES[shape].config() if isinstance(shape, str) else shape
        config.update(changes)
        return random_engine(config, engine_of("llama").model.tokenizer, "fresh")

    return make
