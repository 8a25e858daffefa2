"""The virtual environment of lm-eval, built on first use, and a process in it that answers requests."""

import os
import sysconfig
from pathlib import Path

from tests.support.asked_program import AskedProgram
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


class LmEval(AskedProgram):
    """A running lm-eval, see `program.py`; torch and transformers are this process's own.

    Use it in a `with` block, which ends the process.
    """

    def __init__(self, rows: Path, cache: Path, *, threads: int = 2) -> None:
        """`rows` is a folder with GSM8K's train.jsonl and test.jsonl.

        Raises:
            Unavailable: there is no lm-eval and it could not be installed.
        """
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(REPO),  # our driver
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(cache),
            "OMP_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "false",
        }
        command = [str(python()), str(_PROGRAM), str(rows), sysconfig.get_paths()["purelib"]]
        super().__init__("lm-eval", command, environment, cache / "lm-eval.log")
