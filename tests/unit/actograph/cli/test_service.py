"""`actograph service`: each command becomes a program that exists, and hands its options over."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import api.keys
import storage.migrate
from actograph.stack import up
from tests.support.command_line import Run


def test_each_becomes_a_program(run: Run, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    made: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *given: made.append(given))
    for words, program in {
        ("api",): ["api"],
        ("upkeep",): ["storage.upkeep"],
        ("analysis",): ["worker.analysis"],
        ("migrate", "--check"): ["storage.migrate", "--check"],
        ("migrate", "--now"): ["storage.migrate", "--now"],
        ("create-key", "root"): ["api.keys", "create", "--role=admin", "--", "root"],
        ("create-key", "a", "--role", "read", "--owner", "al"): [
            "api.keys", "create", "--role=read", "--owner=al", "--", "a",
        ],
    }.items():  # fmt: skip
        with subtests.test(words=words):
            made.clear()
            assert run("service", *words)[0] == 0
            [(file, line, environment)] = made
            assert (file, line) == (sys.executable, [sys.executable, "-m", *program])
            assert environment["PYTHONSAFEPATH"] == "1"
            assert find_spec(program[0]) is not None


def test_a_key_is_created_by_these_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACTOGRAPH_DATABASE_URL", f"sqlite:///{tmp_path / 'index.db'}")
    assert storage.migrate.main() == 0
    capsys.readouterr()
    assert api.keys.main(["create", "--role=read", "--owner=al", "--", "a"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("acto_")
    assert "read of al" in err


def test_up_takes_its_model_as_an_argument_too(
    run: Run, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.delenv("ACTOGRAPH_MODEL", raising=False)
    served: list[str] = []
    monkeypatch.setattr(up, "run", lambda settings, *_, **__: served.append(settings.model))
    for words in (("Qwen/Qwen3-0.6B",), ("--model", "Qwen/Qwen3-0.6B")):
        with subtests.test(words=words):
            assert run("up", *words)[0] == 0
            assert served.pop() == "Qwen/Qwen3-0.6B"
    code, _, err = run("up", "a/b", "--model", "c/d")
    assert (code, served) == (1, [])
    assert "two models: 'a/b' and --model 'c/d'" in err
