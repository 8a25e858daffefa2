"""Programs that tests compare with, each in a virtual environment of its own.

python -m tests.support.other_programs NAME...    builds them beforehand
"""

import sys
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path

from tests.support.isolated_python import REPO, python_with
from tests.support.lmeval import environment
from tests.support.servers import swift

#: the package, and the requirements of its OpenAI provider and of its data frames
_INSPECT = ("inspect_ai==0.3.285", "openai==3.52.0", "pandas==3.1.1", "pyarrow==26.0.1")

_SAE = ("sae-lens==6.54.12", "httpx2==2.16.2", "pydantic==2.14.4", "scikit-learn==1.9.1")


def inspect() -> Path:
    """The Python of `.venv-inspect`, with our driver.

    Raises:
        Unavailable: it could not be built, for example without a network.
    """
    # entry points, by which Inspect finds our provider, are read when a package is installed
    ours = sha256((REPO / "pyproject.toml").read_bytes()).hexdigest()
    return python_with("inspect", " ".join((*_INSPECT, ours)), _INSPECT, ("-e", f"{REPO}[inspect]"))


def sae() -> Path:
    """The Python of `.venv-sae`, with SAELens and what our client needs. Raises Unavailable."""
    # `py2store` comes without a wheel
    packages = ("--no-binary=py2store", *_SAE)
    return python_with("sae", " ".join(_SAE), packages)


def sky() -> Path:
    """The Python of `.venv-sky`, with SkyPilot. Raises Unavailable."""
    return python_with("sky", "skypilot==0.14.1", ("skypilot==0.14.1",))


def dstack() -> Path:
    """The Python of `.venv-dstack`. Raises Unavailable."""
    # `cursor` comes without a wheel
    return python_with("dstack", "dstack==0.22.5", ("--no-binary=cursor", "dstack==0.22.5"))


def _client(name: str, *packages: str) -> Callable[[], Path]:
    """The Python of `.venv-<name>`, with a library on top of OpenAI's API."""
    return partial(python_with, name, " ".join(packages), packages)


PROGRAMS: dict[str, Callable[[], Path]] = {
    "agents": _client("agents", "openai-agents==0.24.0"),
    "dstack": dstack,
    "inspect": inspect,
    "instructor": _client("instructor", "instructor==1.17.0"),
    "langchain": _client("langchain", "langchain-openai==1.7.4"),
    "litellm": _client("litellm", "litellm==1.110.2"),
    "lm-eval": environment.python,
    "sae": sae,
    "sky": sky,
    "swift": swift.programs,
}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        PROGRAMS[name]()
