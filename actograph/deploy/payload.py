"""The contents of a deployment: this installation's code, its requirements and its locked set."""

import hashlib
import importlib.util
import io
import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import IO

from actograph.contract.errors import InvalidRequest, ServiceUnavailable
from actograph.deploy.on_box.install import fingerprint_of

PACKAGES = ("actograph", "api", "storage", "worker")
_DISTRIBUTIONS = ("actograph", "actograph-server")
_EXTRAS = ("worker", "analysis")
_EXTRA = re.compile(r"""\s*(?:and\s+)?extra\s*==\s*['"]([^'"]+)['"]""")


@dataclass(frozen=True)
class Payload:
    """Code of a version, and the packages that it needs.

    Args:
        files: path in the version -> content or file.
        lock: pins, as `pip -c` takes them.
    """

    files: dict[str, bytes | Path]
    requirements: tuple[str, ...]
    lock: tuple[str, ...]

    @cached_property
    def manifest(self) -> dict[str, str]:
        """Path -> SHA-256 digest."""
        return {name: hashlib.sha256(_content(self.files[name])).hexdigest() for name in sorted(self.files)}

    @property
    def code(self) -> str:
        """Fingerprint of the code."""
        return fingerprint_of(self.manifest)

    def env(self, *more: object) -> str:
        """Fingerprint of the environment: of the locked set and of the arguments to make it."""
        text = json.dumps([self.requirements, self.lock, *map(str, more)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def write_tar(self, stream: IO[bytes]) -> None:
        """Write the version as a gzipped tar file."""
        with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=3) as tar:
            _add(tar, "manifest.json", json.dumps(self.manifest).encode())
            for name in self.manifest:
                _add(tar, f"lib/{name}", _content(self.files[name]))


def of_this_installation(lock: Path | None) -> Payload:
    """Collect the code of the running installation: a checkout, or installed packages.

    Args:
        lock: file of pins; None takes the checkout's constraints.txt, or the versions installed here.

    Raises:
        ServiceUnavailable: the server's packages are not installed here.
    """
    files: dict[str, bytes | Path] = {}
    for package in PACKAGES:
        folder = _folder_of(package)
        for path in _files_below(folder):
            files[f"{package}/{path.relative_to(folder).as_posix()}"] = path
    requirements: set[str] = set()
    for name in _DISTRIBUTIONS:
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            raise ServiceUnavailable(
                f"{name} is not installed here. Run: pip install 'actograph[server]'"
            ) from None
        text = found.read_text("METADATA") or ""
        files[f"{name.replace('-', '_')}-{found.version}.dist-info/METADATA"] = text.encode()
        requirements |= set(_requirements(found.requires or []))
    return Payload(files, tuple(sorted(requirements)), tuple(_pins(lock)))


def _folder_of(package: str) -> Path:
    found = importlib.util.find_spec(package)
    places = list(found.submodule_search_locations or ()) if found is not None else []
    if not places:
        raise ServiceUnavailable(f"{package} is not installed here. Run: pip install 'actograph[server]'")
    return Path(places[0])


def _files_below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".pyc" and "__pycache__" not in path.parts:
            yield path


def _requirements(lines: list[str]) -> Iterator[str]:
    """Requirements of the service, of its extras too, without our own distributions."""
    for line in lines:
        extra = _EXTRA.search(line)
        if extra is not None and extra[1] not in _EXTRAS:
            continue
        text = _EXTRA.sub("", line).strip().removesuffix(";").strip()
        if not re.match(r"actograph\b", text):
            yield text


def _pins(lock: Path | None) -> list[str]:
    file = lock or _folder_of("actograph").parent / "constraints.txt"
    if lock is not None and not lock.is_file():
        raise InvalidRequest(f"--lock {lock}: no such file")
    if file.is_file():
        lines = (line.partition("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
        return sorted(line for line in lines if line)
    found = {one.metadata["Name"]: one.version.partition("+")[0] for one in metadata.distributions()}
    return sorted(f"{name}=={version}" for name, version in found.items() if name not in _DISTRIBUTIONS)


def tar_of_folder(folder: Path, stream: IO[bytes]) -> None:
    """Write a folder's files as a tar file."""
    with tarfile.open(fileobj=stream, mode="w", dereference=True) as tar:
        for path in _files_below(folder):
            tar.add(path, path.relative_to(folder).as_posix(), recursive=False, filter=_plain)


def digest_of_folder(folder: Path) -> str:
    """Fingerprint of the names, sizes and contents of a folder's files."""
    whole = hashlib.sha256()
    for path in _files_below(folder):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        whole.update(f"{path.relative_to(folder).as_posix()}\0{digest}\n".encode())
    return whole.hexdigest()[:16]


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode = 0o644
    return info


def _content(value: bytes | Path) -> bytes:
    return value if isinstance(value, bytes) else value.read_bytes()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o644
    tar.addfile(info, io.BytesIO(content))
