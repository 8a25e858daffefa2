"""`actograph worker`: options become the environment of `python -m worker`, which takes its place."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import Run

URL = "postgresql://lab:secret@db.internal/actograph"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Arguments of the exec, which does nothing."""
    made: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *given: made.extend(given))
    for name in [one for one in os.environ if one.startswith("ACTOGRAPH_")]:
        monkeypatch.delenv(name)
    return made


def test_options_become_settings(run: Run, started: list[Any]) -> None:
    code, _, err = run(
        "worker", "--model", "m=Qwen/Qwen3-0.6B", "--database-url", URL, "--artifact-url", "s3://b/p",
        "--drain", "--max-idle", "600", "--grace", "30",
    )  # fmt: skip
    assert (code, err) == (0, "")
    program, command, environment = started
    assert (program, command) == (
        sys.executable,
        [sys.executable, "-m", "worker", "--drain", "--max-idle=600"],
    )
    ours = {name: value for name, value in environment.items() if name.startswith("ACTOGRAPH_")}
    assert ours == {
        "ACTOGRAPH_MODEL": "m=Qwen/Qwen3-0.6B",
        "ACTOGRAPH_DATABASE_URL": URL.replace("://", "+psycopg://"),
        "ACTOGRAPH_ARTIFACT_URL": "s3://b/p",
        "ACTOGRAPH_STOP_GRACE_SECONDS": "30.0",
        "ACTOGRAPH_BROKER_URL": "",
    }


def test_the_environment_sets_the_defaults(
    run: Run, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACTOGRAPH_MODEL", "Qwen/Qwen3-0.6B")
    monkeypatch.setenv("ACTOGRAPH_BROKER_URL", "redis://r:6379/0")
    assert run("worker")[0] == 0
    assert started[1] == [sys.executable, "-m", "worker"]
    assert started[2]["ACTOGRAPH_MODEL"] == "Qwen/Qwen3-0.6B"
    assert started[2]["ACTOGRAPH_BROKER_URL"] == "redis://r:6379/0"


def test_an_error_is_one_line(
    run: Run, started: list[Any], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for given, said in [
        ((), "no model"),
        (("--model", "m", "--database-url", "mysql://x/y"), "--database-url"),
        (("--model", "m", "--grace", "0"), "0.1"),
        (("--model", "m", "--tensor-parallel", "0"), "1"),
    ]:
        with subtests.test(given=given):
            code, out, err = run("worker", *given)
            assert code != 0
            assert out == ""
            assert len(err.splitlines()) == 1
            assert said in err.lower()
            assert not started


def test_a_model_on_several_gpus(run: Run, started: list[Any]) -> None:
    run("worker", "--model", "m", "--tensor-parallel", "2")
    assert started[2]["ACTOGRAPH_TENSOR_PARALLEL"] == "2"


def test_adapters_are_models_beside_their_base(run: Run, started: list[Any]) -> None:
    run("worker", "--model", "b=org/base", "--adapter", "sad=org/sad,org/glad", "--adapter", "org/mad")
    assert started[2]["ACTOGRAPH_MODEL"] == "b=org/base"
    assert started[2]["ACTOGRAPH_ALLOWED_MODELS"] == (
        "sad=org/base+org/sad,b+org/glad=org/base+org/glad,b+org/mad=org/base+org/mad"
    )
    started.clear()
    code, _, err = run("worker", "--adapter", "org/sad")
    assert code != 0 and "set --model to its base" in err and not started
