"""Fixtures of the tests of analyses."""

import pytest


@pytest.fixture
def one_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are read one after the other, for tests that count reads."""
    monkeypatch.setattr("worker.analysis.blocks.READERS", 1)
