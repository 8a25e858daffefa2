"""Python functions of the operator, called in processes of their own and with a time limit.

A call that hangs, crashes or leaks memory so fails alone. Requests and answers are lines of JSON. The
processes start with the first call and end with the service.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from actograph.contract.errors import FunctionFailed
from actograph.settings import functions_of

#: processes, and so calls at once
PROCESSES = 4
#: longest answer
MAX_ANSWER_CHARS = 1 << 20


class UserFunctions:
    """Functions by name."""

    def __init__(self, functions: Mapping[str, str], *, seconds: float) -> None:
        """`functions` has `module:function` by name; a call may take `seconds`."""
        self._targets = dict(functions)
        self._seconds = seconds
        self._places = threading.Semaphore(PROCESSES)
        self._idle: list[subprocess.Popen[str]] = []

    @classmethod
    def of(cls, listed: Iterable[str], seconds: float) -> "UserFunctions":
        """The functions of a setting. Raises the errors of `functions_of`."""
        return cls(functions_of(listed), seconds=seconds)

    @property
    def names(self) -> list[str]:
        return list(self._targets)

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Return what a function gives for these arguments, as JSON values.

        Raises:
            FunctionFailed: it raised, took too long, ended its process, or gave no JSON.
        """
        return self._ask(name, {"arguments": dict(arguments)})

    def definition(self, name: str) -> dict[str, Any]:
        """Return the function's docstring as `description`, and the JSON schema of its `parameters`.

        Raises:
            FunctionFailed: it cannot be imported, or lacks a docstring.
        """
        found: dict[str, Any] = self._ask(name, {"describe": True})
        return found

    def close(self) -> None:
        """End the processes that wait for a call."""
        while self._idle:
            _end(self._idle.pop())

    def _ask(self, name: str, request: Mapping[str, Any]) -> Any:
        request = {"function": self._targets[name], "seconds": self._seconds, **request}
        with self._places:
            try:
                process = self._idle.pop()
            except IndexError:
                process = _started()
            assert process.stdin is not None and process.stdout is not None
            line = ""
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
                line = process.stdout.readline(MAX_ANSWER_CHARS)
            if not line.endswith("\n"):
                raise FunctionFailed(f"{name} {self._fault(_end(process), line)}")
            self._idle.append(process)
        answer = json.loads(line)
        if "error" in answer:
            raise FunctionFailed(f"{name} failed: {answer['error']}")
        return answer["value"]

    def _fault(self, status: int, line: str) -> str:
        if line:
            return f"gave an answer of more than {MAX_ANSWER_CHARS} characters"
        if status == -signal.SIGALRM:
            return f"took more than {self._seconds:g} s"
        return f"ended its process with status {status}"


def _started() -> subprocess.Popen[str]:
    # functions need no settings of the service, some of which are secrets
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ACTOGRAPH_")}
    return subprocess.Popen(
        [sys.executable, "-m", "evals.user_functions.process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
        encoding="utf-8",
        start_new_session=True,  # a Ctrl-C at the service lets running calls end
    )


def _end(process: subprocess.Popen[str]) -> int:
    """End a process, and return its exit status; its own, if it has ended by itself."""
    with suppress(BrokenPipeError):
        process.communicate()
    return process.returncode
