"""Commands that reach no service: one line that says why, and what to do."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import Run


def test_no_service_is_one_line(run: Run) -> None:
    code, out, err = run("--url", "http://127.0.0.1:9", "jobs", "ls")
    assert (code, out) == (1, "")
    assert err.startswith("error: cannot reach the service at http://127.0.0.1:9 (")
    assert err.endswith("; start it with: actograph up\n")


def test_usage_errors_are_not_exit_2(run: Run) -> None:
    for typed, told in [
        ("jobs frobnicate", "error: no such command 'frobnicate'; see: actograph jobs --help\n"),
        ("jobs show", "error: missing argument 'ID'; see: actograph jobs show --help\n"),
        ("jobs ls --nope", "error: no such option: --nope; see: actograph jobs ls --help\n"),
    ]:
        assert run(*typed.split()) == (1, "", told)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "no model: set --model"),
        (["--model", "./none"], "no folder './none'"),
        (["--model", "m", "--port", "70000"], "--port: "),
        (["--model", "m", "--dtype", "int4"], "--dtype: "),
    ],
)
def test_up_refuses_what_cannot_work(run: Run, tmp_path: Path, arguments: list[str], reason: str) -> None:
    code, out, err = run("up", "--home", tmp_path, *arguments)
    assert (code, out) == (1, "")
    assert reason in err.splitlines()[-1]


def test_version_and_help_are_quick_to_import() -> None:
    code = (
        "import sys; from actograph.cli import main; "
        "slow = {'httpx', 'rich', 'numpy', 'pydantic', 'torch', 'fastapi', 'celery'} & set(sys.modules); "
        "assert not slow, slow"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
