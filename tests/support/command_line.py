"""Command lines that run in the process of a test."""

from collections.abc import Callable

import pytest

from actograph.cli.main import main

#: exit status, stdout and stderr of a command line
Run = Callable[..., tuple[int, str, str]]


def runner(capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that runs the words of one command line."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call
