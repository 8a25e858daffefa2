"""The virtual environment of lm-eval, built on first use, and a process in it that answers requests."""

import json
import os
import subprocess
import sysconfig
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.isolated_python import REPO, python_with

LM_EVAL = "lm_eval==0.4.13"
#: what its GSM8K tasks and the models behind an API import; the whole of its dependencies has no wheels
NEEDS = (
    "requests", "pyyaml", "jinja2", "datasets==5.2.0", "numpy", "dill", "tqdm", "sacrebleu",
    "more_itertools", "typing_extensions", "aiohttp", "tenacity", "pytablewriter",
)  # fmt: skip
_PROGRAM = Path(__file__).with_name("program.py")


def python() -> Path:
    """The Python of `.venv-lm-eval`.

    Raises:
        Unavailable: it could not be built, for example without a network.
    """
    return python_with("lm-eval", " ".join((LM_EVAL, *NEEDS)), ("--no-deps", LM_EVAL), NEEDS)


class LmEval:
    """A running lm-eval; torch and transformers, which its hf backend needs, are this process's own.

    Use it in a `with` block, which ends the process.
    """

    def __init__(self, rows: Path, cache: Path, *, threads: int = 2) -> None:
        """`rows` is a folder with GSM8K's train.jsonl and test.jsonl.

        Raises:
            Unavailable: there is no lm-eval and it could not be installed.
        """
        self._log = (cache / "lm-eval.log").open("w+")
        site = sysconfig.get_paths()["purelib"]
        self._process = subprocess.Popen(
            [str(python()), str(_PROGRAM), str(rows), site],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(REPO),  # our driver
                "HF_HUB_OFFLINE": "1",
                "HF_HOME": str(cache),
                "OMP_NUM_THREADS": str(threads),
                "TOKENIZERS_PARALLELISM": "false",
            },
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, *requests: dict[str, Any]) -> list[dict[str, Any]]:
        """One answer for each request, see `program.py`.

        Raises:
            RuntimeError: lm-eval failed; the message has the end of what it said.
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
                raise RuntimeError(f"lm-eval ended: {self._log.read()[-2000:]}")
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
