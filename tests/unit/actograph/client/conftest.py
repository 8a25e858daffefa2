from collections.abc import Iterator
from typing import Any

import pytest

from actograph.client import Client


@pytest.fixture
def client(service: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Repeats at once."""
    monkeypatch.setattr("actograph.client.transport.FIRST_DELAY_SECONDS", 0.01)
    with Client(service.url, "", retries=3) as made:
        yield made
