"""Options and help of every command."""

from collections.abc import Iterator
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
