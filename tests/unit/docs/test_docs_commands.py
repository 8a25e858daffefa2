"""Commands in the docs and under `--help` are read by the command line's own parser; nothing is run.

Of `python -m ...` the module is looked up, and whether its source knows the flags.
"""

import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from actograph.cli.main import app
from actograph.cli.shell import GlobalOptions

Blocks = Callable[[str], list[Any]]
_ASSIGNMENT = re.compile(r"[A-Z_]+=.*", re.DOTALL)
#: what prose may leave out
_INCOMPLETE = frozenset({"MissingParameter", "NoArgsIsHelpError"})


def simple_commands(text: str) -> Iterator[list[str]]:
    """The words of every command in a piece of shell, those in `$(...)` and of pipes each for themselves."""
    text = re.sub(r"(^|\s)#[^\n]*", r"\1", text)
    lexer = shlex.shlex(text.replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    for token in [*lexer, ";"]:
        if not set(token) <= set("();|&<>"):
            words.append(token)
            continue
        while words and _ASSIGNMENT.fullmatch(words[0]):
            words.pop(0)
        if words:
            yield words
        words = []


@cache
def whole_command() -> Any:
    return typer.main.get_command(app)


def parse(words: list[str]) -> None:
    """Have the parser read a command, without running it. Raises its usage errors."""
    command = whole_command()
    context, name, rest = None, "actograph", words[1:]
    while True:
        try:
            context = command.make_context(name, list(rest), parent=context, obj=GlobalOptions())
        except typer.BadParameter as error:
            if "does not exist" in error.message:  # a file of the example's
                return
            raise
        if not hasattr(command, "commands"):
            return
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])


def check(text: str, repository: Path) -> None:
    for words in simple_commands(text):
        program = Path(words[0]).name
        if program == "actograph":
            parse(words)
        elif program.startswith("python") and words[1] == "-m":
            check_module(repository, words[2], words[3:])


def check_module(repository: Path, module: str, words: list[str]) -> None:
    """The module can be run, and its source knows the flags."""
    path = repository / Path(*module.split("."))
    source = next((p for p in (path.with_suffix(".py"), path / "__main__.py") if p.is_file()), None)
    assert source is not None, f"there is no module {module}"
    text = source.read_text(encoding="utf-8")
    for flag in (word.partition("=")[0] for word in words if word.startswith("--")):
        assert f'"{flag}"' in text, f"{module} knows no {flag}"


def test_blocks_of_shell(blocks: Blocks, repository: Path, subtests: pytest.Subtests) -> None:
    for block in blocks("sh"):
        with subtests.test(block.place):
            check(block.text, repository)


def test_typed_lines_in_blocks_of_output(blocks: Blocks, repository: Path, subtests: pytest.Subtests) -> None:
    for block in blocks("text"):
        with subtests.test(block.place):
            check("\n".join(re.findall(r"^\$ (.*)", block.text, re.MULTILINE)), repository)


def test_commands_in_the_text(prose: dict[str, str], repository: Path, subtests: pytest.Subtests) -> None:
    for page, text in prose.items():
        for span in re.findall(r"`((?:actograph|python -m) [^`\n]+)`", text):
            with subtests.test(page, span=span):
                check_span(span, repository)


def check_span(span: str, repository: Path) -> None:
    """Arguments may be left out, `a|b` stands for each of them and `COMMAND` for any."""
    words = shlex.split(span)
    if words[0] == "python" or "$(" in span:
        check(span, repository)
    elif not words[1].isupper() and "--install-completion" not in words:
        for verb in words[-1].split("|"):
            try:
                parse([*words[:-1], verb])
            except Exception as error:
                if type(error).__name__ not in _INCOMPLETE:
                    raise


def test_a_flag_that_is_gone_is_found(repository: Path) -> None:
    with pytest.raises(Exception, match="--nope"):
        check("A=1 actograph jobs cancel $(actograph jobs ls -q --nope)", repository)
    with pytest.raises(AssertionError, match="knows no --nope"):
        check("python -m bench --nope", repository)
