"""A service with SmolLM2-135M-Instruct in float32, which all tests of a module share."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actograph.client import Client
from tests.e2e.conftest import module_up
from tests.support import real_model
from tests.support.availability import unavailable
from tests.support.servers import Unavailable

__all__ = ["module_up"]


@pytest.fixture(scope="session")
def smollm2() -> Path:
    try:
        return real_model.smollm2()
    except Unavailable as error:
        unavailable(str(error))


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def url(module_up: Callable[..., Any], smollm2: Path, data_root: Path) -> str:
    service = module_up("--dtype=float32", f"--data-root={data_root}", model=f"smollm2={smollm2}")
    service.await_ready()
    return str(service.url)


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Client]:
    with Client(url) as made:
        yield made
