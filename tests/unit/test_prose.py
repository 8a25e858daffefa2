"""Plain English: first words of docstrings, and the length of sentences in docs and help."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from actograph.cli.main import app

REPO = Path(__file__).resolve().parents[2]
ROOMS = ("actograph", "api", "storage", "worker", "bench", "tests/support", "docs")
#: words that make a docstring a clause in place of a noun phrase or an imperative
BAD_STARTS = frozenset({"What", "Who", "Whose", "Those", "Of", "Where"})
MAX_WORDS = 40
PAGES = [REPO / "README.md", *sorted((REPO / "docs").rglob("*.md"))]


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Lines and texts of the docstrings of a module, its classes and its functions."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text


def starts_badly(text: str) -> bool:
    """True if the first word is one of the refused ones."""
    found = re.match(r"\W*(\w+)", text)
    return found is not None and found[1] in BAD_STARTS


def sentences(markdown: str) -> Iterator[str]:
    """Sentences of the prose: without code, and with table cells and list items on their own."""
    text = re.sub(r"^```.*?^```$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "code", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.|\||#)\s?)|\|", text):
        yield from re.split(r"(?<=[.!?:;])\s+", " ".join(block.split()))


def long_sentences(markdown: str) -> list[str]:
    """Sentences with more words than allowed."""
    return [one for one in sentences(markdown) if len(re.findall(r"[\w']+", one)) > MAX_WORDS]


def help_texts(command: Any, path: str) -> Iterator[tuple[str, str]]:
    """Help of a command, its parameters and its subcommands."""
    yield path, command.help or ""
    for parameter in command.params:
        yield f"{path} {parameter.name}", getattr(parameter, "help", None) or ""
    for name, child in getattr(command, "commands", {}).items():
        yield from help_texts(child, f"{path} {name}")


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_start_with_an_imperative_or_a_noun(room: str) -> None:
    offences = [
        f"{path.relative_to(REPO)}:{line}: {text.splitlines()[0]}"
        for path in sorted((REPO / room).rglob("*.py"))
        for line, text in docstrings(path.read_text(encoding="utf-8"))
        if starts_badly(text)
    ]
    assert offences == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPO).as_posix())
def test_sentences_of_the_docs_are_short(page: Path) -> None:
    assert long_sentences(page.read_text(encoding="utf-8")) == []


def test_sentences_of_the_help_are_short() -> None:
    offences = {path: long_sentences(text) for path, text in help_texts(typer.main.get_command(app), "")}
    assert {path: found for path, found in offences.items() if found} == {}


def test_the_lint_sees_bad_prose() -> None:
    assert starts_badly("What the worker does.")
    assert not starts_badly("Whether a job has ended.")
    assert long_sentences("word " * (MAX_WORDS + 1) + ".")
    assert not long_sentences("| " + "word | " * 60)
    assert not long_sentences("`" + "word " * 60 + "`\n" + "One two. " * 60)
