"""A program in a process of its own that answers each line of JSON with another one."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class AskedProgram:
    """Use it in a `with` block, which ends the process."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._name = name
        self._log = log.open("w+")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=dict(environment),
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, *requests: dict[str, Any]) -> list[dict[str, Any]]:
        """One answer for each request, as the program defines them.

        Raises:
            RuntimeError: the program ended; the message has the end of what it said.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        answers: list[dict[str, Any]] = []
        for request in requests:
            line = ""
            if self._process.poll() is None:
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            if not line:
                self._log.seek(0)
                raise RuntimeError(f"{self._name} ended: {self._log.read()[-3000:]}")
            answers.append(json.loads(line))
        return answers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._log.close()
