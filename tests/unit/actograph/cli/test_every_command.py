"""Output formats of every command."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from actograph.cli.main import app
from tests.support.command_line import Run

#: these run programs, a browser (`open`) or another package (`lm-eval`); `chat` and logs are text
WITHOUT_ANSWER = {"up", "worker", "open", "demo", "chat", "deploy logs", "lm-eval"}
WITHOUT_ANSWER |= {f"service {name}" for name in ("api", "upkeep", "analysis", "migrate", "create-key")}
#: always JSON, for other programs
ALWAYS_JSON = {"batches results", "schema"}


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


ALL = dict(commands(typer.main.get_command(app)))


def test_every_command_answers_as_a_table_or_as_json(subtests: pytest.Subtests) -> None:
    for name in sorted(set(ALL) - WITHOUT_ANSWER - ALWAYS_JSON):
        with subtests.test(name=name):
            options = {option: p for p in ALL[name].params for option in p.opts}
            assert "--format" in options, name
            assert options["--format"].default == "table"


def test_help_texts_are_shown_whole(
    run: Run, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """With all that stands in brackets, of every command and option."""
    monkeypatch.setenv("COLUMNS", "2000")
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 2000)
    bracketed = 0
    for name, command in ALL.items():
        with subtests.test(name=name):
            code, out, _ = run(*name.split(), "--help")
            assert code == 0
            shown = " ".join(out.split())
            texts = [command.help, command.epilog, *(getattr(one, "help", None) for one in command.params)]
            for text in filter(None, texts):
                bracketed += "[" in text
                for paragraph in text.split("\n\n"):
                    assert " ".join(paragraph.split()) in shown
    assert bracketed > 8


@pytest.fixture
def run_json(run: Run) -> Any:
    def call(*arguments: object) -> tuple[int, list[Any], str]:
        code, out, err = run(*arguments, "--format", "json")
        return code, [json.loads(line) for line in out.splitlines()], err

    return call


def test_changes_answer_as_json(service: Any, run_json: Any) -> None:
    job = service.add_job(1, status="in_progress")
    assert [one["status"] for one in run_json("jobs", "cancel", job.id)[1]] == ["cancelled"]
    assert [one["status"] for one in run_json("jobs", "retry", job.id)[1]] == ["queued"]
    assert [one["deleted"] for one in run_json("jobs", "rm", "--yes", job.id)[1]] == [True]
    session = service.add_session(1)
    assert [one["id"] for one in run_json("sessions", "rm", session.id, "--yes")[1]] == [session.id]
    assert run_json("queue", "pause")[1][0]["paused"]
    assert not run_json("queue", "resume")[1][0]["paused"]


def test_sessions_are_pulled_side_by_side(service: Any, run_json: Any, tmp_path: Path) -> None:
    data = bytes(range(256)) * 4000
    sessions = [service.add_session(number, {"a.bin": data + bytes([number])}) for number in range(6)]
    code, lines, err = run_json(
        "sessions", "download", *(s.id for s in sessions), "--out", tmp_path, "--jobs", 3
    )
    assert code == 0
    assert [line["id"] for line in lines] == [session.id for session in sessions], "in the order asked for"
    for number, session in enumerate(sessions):
        assert (tmp_path / session.id / "a.bin").read_bytes() == data + bytes([number])
    assert "in_progress 6/6" in err
    assert "6 sessions, 6 files, 6.1 MB, verified" in err


def test_sessions_are_pulled_by_filter(service: Any, run_json: Any, tmp_path: Path) -> None:
    for number in range(4):
        service.add_session(number)
    code, lines, _ = run_json("sessions", "download", "--correct", "--out", tmp_path)
    assert code == 0
    assert {line["id"] for line in lines} == {f"ses_{number:032x}" for number in (0, 2)}
    assert run_json("sessions", "download", "--out", tmp_path)[0] == 1, "neither ids nor filters"
