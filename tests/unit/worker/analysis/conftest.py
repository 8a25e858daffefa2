"""What tests of analyses share."""

import pytest


@pytest.fixture
def one_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are read one after the other, for tests that count reads."""
    monkeypatch.setattr("worker.analysis.blocks.READERS", 1)
