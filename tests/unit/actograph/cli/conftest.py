from typing import Any

import pytest

from actograph.cli import models
from actograph.client import transport
from tests.support.command_line import Run, runner


@pytest.fixture
def run(service: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line; gives exit status, stdout and stderr."""
    monkeypatch.setattr(transport, "FIRST_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(models, "LOOK_SECONDS", 0.0)
    monkeypatch.setenv("ACTOGRAPH_URL", service.url)
    monkeypatch.setenv("TERM", "dumb")
    return runner(capsys)
