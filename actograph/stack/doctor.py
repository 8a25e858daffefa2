"""`actograph doctor`: what would keep the service from running on this machine."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from actograph.client import Client
from actograph.contract import quantization
from actograph.contract.errors import ActographError
from actograph.contract.models import parse_served
from actograph.settings import Settings
from actograph.smoke import found_service
from actograph.stack import redis_server
from actograph.stack.ports import is_free
from actograph.stack.programs import program, program_environment, require_installed
from actograph.stack.up import count_cards

_TORCH = "import torch; print(torch.__version__, torch.cuda.device_count())"


class UpProblem(Exception):
    """A finding that keeps the service from running, and its cure."""


@dataclass(frozen=True)
class Finding:
    """The result of one check. The detail of a problem says how to mend it."""

    check: str
    is_ok: bool
    detail: str


def examine(settings: Settings) -> Iterator[Finding]:
    """Check everything that `actograph up` needs. Changes nothing; a store's object is deleted again."""
    for name, check in CHECKS.items():
        try:
            yield Finding(name, True, check(settings))
        except (UpProblem, ActographError, OSError) as error:
            yield Finding(name, False, str(error))


def _python(_: Settings) -> str:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        raise UpProblem(f"Python {version}; install 3.11, 3.12 or 3.13")
    return f"{version}, {sys.executable}"


def _packages(_: Settings) -> str:
    require_installed()
    return "the service is installed"


def _device(settings: Settings) -> str:
    done = subprocess.run([sys.executable, "-c", _TORCH], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UpProblem(f"torch cannot be imported: {reason}; install it again with constraints.txt")
    version, seen = done.stdout.split()
    cards = count_cards()
    if cards > int(seen) and not settings.device.startswith("cpu"):
        raise UpProblem(
            f"torch {version} sees {seen} of {cards} NVIDIA GPUs: install a torch for the driver's CUDA "
            "(nvidia-smi shows it), or set --device cpu"
        )
    if settings.device.startswith("cuda") and seen == "0":
        raise UpProblem(f"--device {settings.device}, but this machine has no NVIDIA GPU; use --device cpu")
    if settings.tensor_parallel > max(1, int(seen)) and int(seen):
        raise UpProblem(
            f"--tensor-parallel {settings.tensor_parallel} needs as many GPUs, and torch sees {seen}"
        )
    return f"torch {version}, {seen} GPUs"


def _redis(settings: Settings) -> str:
    if "broker_url" not in settings.model_fields_set or not settings.broker_url:
        return str(redis_server.find_executable())
    if (reason := redis_server.trouble(settings.broker_url)) is not None:
        raise UpProblem(
            f"the Redis of ACTOGRAPH_BROKER_URL does not answer ({reason}); start it, mend the URL, or unset "
            "the variable"
        )
    return "the Redis of ACTOGRAPH_BROKER_URL answers"


def _home(settings: Settings) -> str:
    home = settings.home.expanduser().absolute()
    existing = _existing(home)
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UpProblem(f"{existing} cannot be written to; choose another --home")
    if existing != home:
        return f"{home} will be made"
    if home.stat().st_mode & 0o022:
        raise UpProblem(f"other users can write to {home}; run: chmod go-w {home}")
    return str(home)


def _disk(settings: Settings) -> str:
    home = settings.home.expanduser().absolute()
    free, floor = shutil.disk_usage(_existing(home)).free / 2**30, settings.disk_floor_bytes / 2**30
    if free < floor:
        raise UpProblem(
            f"{free:.1f} GiB free: below {floor:.1f} GiB (ACTOGRAPH_DISK_FLOOR_BYTES) the queue pauses; "
            "free some, or choose another --home"
        )
    return f"{free:.1f} GiB free"


def _port(settings: Settings) -> str:
    if settings.port == 0 or is_free(settings.host, settings.port):
        return f"{settings.host}:{settings.port} is free"
    with Client(settings.effective_url, settings.api_key, timeout=5, retries=0) as client:
        try:
            return f"{found_service(client)}, serves {settings.effective_url}"
        except ActographError as error:
            place = f"{settings.host}:{settings.port}"
            raise UpProblem(
                f"another program uses {place}, or may not be asked ({error}); choose --port"
            ) from None


def _index(settings: Settings) -> str:
    url = settings.effective_database_url
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        return "will be made"
    return _said_by("storage.migrate", "--check", ACTOGRAPH_DATABASE_URL=url)


def _store(settings: Settings) -> str:
    url = settings.effective_artifact_url
    if not settings.artifact_url and not Path(url.removeprefix("file://")).exists():
        return "will be made"
    return _said_by("storage.artifacts", ACTOGRAPH_ARTIFACT_URL=url)


def _said_by(module: str, *arguments: str, **variables: str) -> str:
    """Run a program of the service and return its output. Raises Problem with its last line if it fails."""
    done = subprocess.run(
        program(module, *arguments),
        env=program_environment(**variables),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise UpProblem((done.stderr.strip().splitlines() or ["no message"])[-1])
    return done.stdout.strip()


def _model(settings: Settings) -> str:
    if not settings.model:
        return "none is set; `actograph up --model` names one"
    served = parse_served(settings.model)
    source = served.source
    if served.names_folder:
        if not (Path(source) / "config.json").is_file():
            raise UpProblem(f"{source} has no config.json; name the folder of a checkpoint")
        source += _quantization(Path(source))
    else:
        source = f"{source}, from the Hub"
    return source if served.adapter is None else f"{source}, with the adapter {served.adapter}"


def _quantization(folder: Path) -> str:
    """A remark on a quantised checkpoint; "" if it is not one."""
    try:
        config = json.loads((folder / "config.json").read_text())
        method = quantization.method_of(config)
    except (ValueError, AttributeError):
        raise UpProblem(f"{folder / 'config.json'} is no JSON object; copy the checkpoint again") from None
    if method is None:
        return ""
    if (missing := quantization.missing_package(method)) is not None:
        raise UpProblem(f"{folder} is quantised by {method}, which needs: pip install {missing}")
    verified = "verified on a CPU" if quantization.unverified(config, "cpu") is None else "unverified"
    return f", quantised by {method} ({verified})"


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)


CHECKS: dict[str, Callable[[Settings], str]] = {
    "python": _python,
    "packages": _packages,
    "device": _device,
    "redis": _redis,
    "home": _home,
    "disk": _disk,
    "port": _port,
    "index": _index,
    "store": _store,
    "model": _model,
}
