"""The contents of a deployment: source, requirements and locked versions of this checkout."""

import hashlib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from actograph.contract.errors import ServiceUnavailable
from actograph.deploy.on_box.layout import fingerprint

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = ("actograph", "api", "evals", "storage", "worker")
_EXTRA = re.compile(r"actograph\[([\w,]+)\]")


@dataclass(frozen=True)
class Payload:
    """A version of the service.

    Args:
        files: path in the version -> file.
        requirements: for `pip install`.
        constraints: pins of versions, as `pip -c` takes them.
    """

    files: dict[str, Path]
    requirements: tuple[str, ...]
    constraints: tuple[str, ...]

    @cached_property
    def version(self) -> str:
        """Fingerprint of the source."""
        return fingerprint(self.files)

    @cached_property
    def lock(self) -> str:
        """Fingerprint of requirements and pins: source changes keep the environment."""
        return hashlib.sha256("\n".join((*self.requirements, *self.constraints)).encode()).hexdigest()[:12]


def of_checkout() -> Payload:
    """Collect the files of a checkout, with changes that are not committed.

    Raises:
        ServiceUnavailable: `actograph` was installed from a wheel, which has no locked versions.
    """
    folder = CHECKOUT
    if not all((folder / name).exists() for name in (*PACKAGES, "pyproject.toml", "constraints.txt")):
        raise ServiceUnavailable(
            "deploy needs a checkout of Actograph, with its constraints.txt: clone it, and install it by "
            "pip install -e ."
        )
    files = {}
    for package in PACKAGES:
        for path in sorted((folder / package).rglob("*")):
            name = path.relative_to(folder)
            if path.is_file() and path.suffix != ".pyc" and not _is_hidden(name):
                files[name.as_posix()] = path
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (line.partition("#")[0].strip() for line in (folder / "constraints.txt").read_text().splitlines())
    return Payload(
        files, tuple(sorted(set(_requirements(project, "service")))), tuple(sorted(filter(None, lines)))
    )


def _is_hidden(name: Path) -> bool:
    return any(part.startswith(".") for part in name.parts)


def _requirements(project: dict[str, dict[str, list[str]]], extra: str) -> Iterator[str]:
    """Requirements of the project and of an extra, those of extras that it includes too."""
    yield from project["dependencies"]
    for requirement in project["optional-dependencies"][extra]:
        if match := _EXTRA.fullmatch(requirement):
            for included in match[1].split(","):
                yield from _requirements(project, included)
        else:
            yield requirement
