"""`actograph deploy` to a real OpenSSH server: an unprivileged user with an empty home."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actograph.client import Client
from actograph.deploy import payload
from actograph.stack.ports import free_port
from tests.support.availability import unavailable
from tests.support.servers import Unavailable
from tests.support.servers.sshd import SshServer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]
ACTOGRAPH = [sys.executable, "-m", "actograph"]
#: relative to the home on the box
MODEL = "demo=./.actograph-deploy/current/actograph/demo/model"


class Desk:
    """The researcher's machine: a home folder of its own, and commands."""

    def __init__(self, folder: Path, server: SshServer) -> None:
        self.folder, self.server = folder, server
        self.port = free_port("127.0.0.1")
        self.root = server.home / ".actograph-deploy"
        self.checkout = payload.CHECKOUT

    def run(self, *words: object) -> "subprocess.CompletedProcess[str]":
        """Run `actograph deploy` with these words."""
        code = {"PYTHONPATH": str(self.checkout), "PYTHONSAFEPATH": "1"}
        began = time.monotonic()
        done = subprocess.run(
            [*ACTOGRAPH, "deploy", *map(str, words)], cwd=self.folder, stdin=subprocess.DEVNULL,
            env=os.environ | code | {"ACTOGRAPH_HOME": str(self.folder / "home")},
            capture_output=True, text=True, check=False, timeout=3000,
        )  # fmt: skip
        print(f"deploy {words}: {time.monotonic() - began:.1f} s\n{done.stderr}{done.stdout}")  # noqa: T201
        return done

    def deploy(self, *words: object) -> "subprocess.CompletedProcess[str]":
        return self.run("box", "--ssh", self.server.ssh, "--port", self.port, *words)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("status", "--format", "json").stdout)
        return found

    def captured_and_read_back(self) -> int:
        """Capture a sample through the tunnel and read its rows. Returns their number."""
        with Client(self.status()["url"], "") as client:
            job = client.submit({
                "kind": "capture", "model": "demo", "inputs": [{"prompt": "3 + 4 ="}],
                "sampling": {"max_tokens": 4}, "capture": {"hooks": ["resid_post.1"]},
            }).wait(timeout=300)  # fmt: skip
            (session,) = client.sessions.list(job_id=job.id)
            return len(client.sessions.get(session.id)["resid_post.1"][:])


@pytest.fixture
def desk() -> Iterator[Desk]:
    server = SshServer()
    # paths of control sockets must be short
    with tempfile.TemporaryDirectory() as folder:
        try:
            server.create()
        except Unavailable as error:
            server.close()
            unavailable(str(error))
        made = Desk(Path(folder), server)
        yield made
        made.run("tunnel", "--close")
        server.close()


def test_from_an_empty_home_to_a_captured_sample_and_back(desk: Desk, wait: Callable[..., None]) -> None:
    python = desk.server.python
    assert list(desk.server.home.iterdir()) == []
    first = desk.deploy("--python", python, "--model", MODEL, "--options", "--threads 1")
    assert first.returncode == 0, first.stderr
    assert "  | ok     capture" in first.stderr
    assert desk.captured_and_read_back() > 4

    again = desk.deploy("--python", python, "--reuse")
    assert again.returncode == 0, again.stderr
    assert "nothing was restarted" in again.stderr

    desk.checkout = _copy(desk.folder / "broken")
    (desk.checkout / "worker" / "__main__.py").write_text("raise SystemExit('this worker is broken')\n")
    failed = desk.deploy("--python", python)
    assert failed.returncode == 1
    assert "this worker is broken" in failed.stderr
    assert failed.stderr.splitlines()[-1].endswith("release 1 serves again")
    assert desk.captured_and_read_back() > 4

    desk.checkout = _copy(desk.folder / "newer")
    (desk.checkout / "worker" / "added.py").touch()
    assert desk.deploy("--python", python).returncode == 0
    assert desk.run("rollback").returncode == 0
    assert desk.status()["version"] == payload.of_checkout().version
    assert desk.captured_and_read_back() > 4

    assert desk.run("destroy", "--yes").returncode == 0
    assert [path.name for path in desk.server.home.iterdir()] == [".actograph-deploy"]
    assert [path.name for path in desk.root.iterdir()] == ["home"]
    wait(lambda: desk.server.processes() == [])


def test_packages_are_installed_and_made_anew(desk: Desk) -> None:
    """With the real packages, from the index of pip's configuration."""
    options = ("--model", MODEL, "--options", "--threads 1")
    first = desk.deploy(*options)
    if "No matching distribution" in first.stderr or "Could not find a version" in first.stderr:
        unavailable("no package index")
    assert first.returncode == 0, first.stderr
    assert desk.captured_and_read_back() > 4

    [site] = desk.root.glob("envs/*/lib/python3*/site-packages")
    (site / "fastapi" / "__init__.py").write_text("raise ImportError('poisoned')\n")
    assert desk.run("stop").returncode == 0
    refused = desk.deploy()
    assert refused.returncode == 1
    assert "ImportError: poisoned" in refused.stderr.splitlines()[-1]
    assert "--fresh" in refused.stderr.splitlines()[-1]
    assert desk.deploy("--fresh").returncode == 0
    assert desk.captured_and_read_back() > 4
    assert desk.run("destroy", "--yes", "--delete-data").returncode == 0
    assert list(desk.server.home.iterdir()) == []


def _copy(folder: Path) -> Path:
    """Copy the checkout, to change it."""
    for name in payload.PACKAGES:
        shutil.copytree(payload.CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(payload.CHECKOUT / name, folder)
    return folder
