"""The scripts that shells are given, bash's run by bash itself."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from actograph.cli.main import main

PROGRAM = f"""#!{sys.executable}
import sys
from actograph.cli.main import main
sys.exit(main())
"""


@pytest.fixture
def on_the_path(tmp_path: Path) -> dict[str, str]:
    """An environment in which `actograph` is a command."""
    command = tmp_path / "actograph"
    command.write_text(PROGRAM, encoding="utf-8")
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("actograph job", ["jobs"]),
        ("actograph sessions pu", ["pull"]),
        ("actograph jobs ls --for", ["--format"]),
        ("actograph jobs ls --format j", ["json"]),
    ],
)
def test_bash_completes(typed: str, offered: list[str], on_the_path: dict[str, str]) -> None:
    words = " ".join(f"'{word}'" for word in typed.split(" "))
    script = (
        "source <(actograph completion bash) && complete -p actograph >&2 && "
        f"COMP_WORDS=({words}) COMP_CWORD={typed.count(' ')} && "
        '_actograph_completion actograph && printf "%s\\n" "${COMPREPLY[@]}"'
    )
    ended = subprocess.run(
        ["bash", "-c", script], env=on_the_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert "-F _actograph_completion actograph" in ended.stderr
    assert ended.stdout.split() == offered


@pytest.mark.parametrize(
    ("shell", "asked", "offered"),
    [
        ("zsh", {"_TYPER_COMPLETE_ARGS": "actograph sessions pu"}, '"pull"'),
        (
            "fish",
            {"_TYPER_COMPLETE_ARGS": "actograph sessions pu", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
            "pull\t",
        ),
    ],
)
def test_other_shells_are_answered_in_their_form(
    shell: str,
    asked: dict[str, str],
    offered: str,
    on_the_path: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_ACTOGRAPH_COMPLETE=complete_{shell}" in script
    assert set(asked) <= set(script.replace("=", " ").replace("(", " ").split())
    ended = subprocess.run(
        ["actograph"],
        env={**on_the_path, "_ACTOGRAPH_COMPLETE": f"complete_{shell}", **asked},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert offered in ended.stdout, ended.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_its_shell_reads(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    assert main(["completion", shell]) == 0
    ended = subprocess.run(
        [shell, "-n"], input=capsys.readouterr().out, capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_shell_without_completion_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "csh"]) == 1
    assert "'bash', 'zsh', 'fish'" in capsys.readouterr().err
