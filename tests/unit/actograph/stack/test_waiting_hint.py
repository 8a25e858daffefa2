"""`up` names the programs that it waits for, after a while, and only while it waits for one."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from actograph.settings import Settings
from actograph.stack import stack as stack_module
from actograph.stack.processes import Child, Program
from actograph.stack.stack import Stack, StackOptions
from actograph.stack.stop_signals import StopSignals


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def waiting(tmp_path: Path, said: list[str]) -> Iterator[tuple[Stack, Child]]:
    """A stack with one program, which was never started."""
    settings = Settings(home=tmp_path, port=0)
    options = StackOptions(settings=settings, workers=1, broker_url="redis://127.0.0.1:1/0")
    with StopSignals() as signals:
        stack = Stack(options, said.append, signals)
        child = Child(
            Program(name="worker-1", command=[], environment={}, log=tmp_path / "worker-1.log"), said.append
        )
        stack._supervisor.children.append(child)
        yield stack, child
        stack._client.close()


def let_pass(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + seconds)


def test_a_long_wait_is_explained(
    waiting: tuple[Stack, Child], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, _ = waiting
    stack._probe()
    assert said == []
    let_pass(monkeypatch, stack_module._PATIENCE_SECONDS + 1)
    stack._probe()
    assert [line.partition(";")[0] for line in said] == ["still waiting for worker-1"]


def test_the_wait_begins_when_a_program_is_lost_and_not_when_up_was_started(
    waiting: tuple[Stack, Child], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, child = waiting
    child.ready = True
    let_pass(monkeypatch, 1000)
    stack._probe()
    child.ready = False
    stack._probe()
    assert said == []
