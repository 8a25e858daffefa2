"""Small real models and engines around them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.support.architectures import ARCHITECTURES
from tests.support.engine_run import random_engine
from worker.engine.engine import Engine
from worker.engine.model.load import load_model


@pytest.fixture(scope="session")
def engine_of(trained: Engine, shared: Path) -> Callable[[str], Engine]:
    """Model name -> its engine: `tiny-qwen3`, `stories260k`, or random weights in a known shape."""
    made = {"tiny-qwen3": trained}

    def make(name: str) -> Engine:
        if name in made:
            return made[name]
        if name in ARCHITECTURES:
            tokenizer = AutoTokenizer.from_pretrained(shared / "models" / "stories260k")
            made[name] = random_engine(ARCHITECTURES[name].config(), tokenizer, name)
        else:
            made[name] = Engine(load_model(str(shared / "models" / name), device="cpu", name=name))
        return made[name]

    return make


@pytest.fixture
def as_traced() -> Callable[[Engine, bool], AbstractContextManager[None]]:
    """Runs an engine under nnsight within the context, or as it is."""

    @contextmanager
    def run(engine: Engine, traced: bool) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            if traced:
                patch.setitem(engine.forwards.__dict__, "reason", "a test wants traces")
            yield

    return run
