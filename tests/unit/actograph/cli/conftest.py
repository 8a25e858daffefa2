import pytest

from tests.support.command_line import Run, runner


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line; gives exit status, stdout and stderr."""
    monkeypatch.setenv("TERM", "dumb")
    return runner(capsys)
