"""`actograph deploy` to a real OpenSSH server: an unprivileged user with an empty home."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from actograph.client import Client
from actograph.demo import MODEL_DIR, PROBLEMS
from actograph.stack.ports import free_port
from tests.support.servers import Unavailable
from tests.support.servers.sshd import SshServer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]
REPO = Path(__file__).resolve().parents[2]
ACTOGRAPH = [sys.executable, "-m", "actograph"]


class Desk:
    """The machine of the researcher: a home folder of its own, and commands."""

    def __init__(self, folder: Path, server: SshServer, python: str) -> None:
        self.folder, self.server, self.python = folder, server, python
        self.port = free_port("127.0.0.1")
        self.root = server.home / "actograph"

    def run(self, *words: str, code: Path | None = None) -> "subprocess.CompletedProcess[str]":
        """Run `actograph deploy` with these words; `code` has the packages of another version."""
        environment = os.environ | {"ACTOGRAPH_HOME": str(self.folder)}
        if code is not None:
            environment |= {"PYTHONPATH": str(code), "PYTHONSAFEPATH": "1"}
        started = time.monotonic()
        done = subprocess.run(
            [*ACTOGRAPH, "deploy", *words], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
        sys.stdout.write(f"deploy {' '.join(words)}: {time.monotonic() - started:.1f} s, {done.returncode}\n")
        sys.stdout.write(done.stderr + done.stdout)
        return done

    def deploy(self, *words: str, code: Path | None = None) -> "subprocess.CompletedProcess[str]":
        fixed = ("--ssh", self.server.ssh, "--python", self.python, "--port", str(self.port))
        options = ("--options", "--threads 1 --analysis-workers 0", "--model", "demo=./model")
        return self.run("box", *fixed, *options, *words, code=code)

    def status(self) -> dict[str, Any]:
        done = self.run("status", "box", "--format", "json")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def captured_and_read_back(self) -> int:
        """Capture one sample through the tunnel and read its rows. Returns their number."""
        with Client(self.status()["url"], "") as client:
            job = client.submit({
                "kind": "capture", "model": "demo", "inputs": [{"prompt": "3 + 4 ="}],
                "sampling": {"max_tokens": 4}, "capture": {"hooks": ["resid_post.1"]},
            }).wait(timeout=120)  # fmt: skip
            (session,) = client.sessions.list(job_id=job.id)
            rows = client.sessions.get(session.id)["resid_post.1"][:]
            return len(rows)


@pytest.fixture(scope="module")
def server() -> Iterator[SshServer]:
    server = SshServer()
    try:
        server.create()
        yield server
    except Unavailable as error:
        pytest.skip(str(error))
    finally:
        server.close()


@pytest.fixture(scope="module")
def desk(server: SshServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("desk")
    shutil.copytree(MODEL_DIR, folder / "model")
    try:
        desk = Desk(folder, server, server.python())
    except Unavailable as error:
        pytest.skip(str(error))
    yield desk
    desk.run("tunnel", "box", "--close")


def packages(folder: Path) -> Path:
    """Another version of this checkout's packages, to change."""
    for name in ("actograph", "api", "storage", "worker"):
        shutil.copytree(REPO / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPO / "constraints.txt", folder)
    return folder


def test_from_an_empty_home_to_a_captured_sample_and_back(
    desk: Desk, server: SshServer, tmp_path: Path, wait: Callable[..., None]
) -> None:
    assert list(server.home.iterdir()) == []
    refused = desk.deploy("--frozen")
    assert (refused.returncode, "--frozen: version" in refused.stderr) == (1, True), refused.stderr

    first = desk.deploy()
    assert first.returncode == 0, first.stderr
    assert "smoke: ok     capture" in first.stderr
    assert "  | ready: http://127.0.0.1:" in first.stderr, "the log is shown while it waits"
    assert desk.captured_and_read_back() > 4
    status = desk.status()
    assert (status["release"]["number"], status["pid"] is not None) == (1, True)
    with pytest.raises(OSError), socket.create_connection((_address(), desk.port), timeout=2):
        pass

    again = desk.deploy("--reuse")
    assert again.returncode == 0, again.stderr
    assert "release 1 runs already" in again.stderr
    assert "sent" not in again.stderr
    assert desk.deploy("--frozen").returncode == 0

    _poisoned_environment(desk)
    _broken_version(desk, tmp_path)
    _rollback(desk)
    _ports(desk, server, wait)
    _experiment(desk)
    _destroyed(desk, server, wait)


def _address() -> str:
    """An address of this machine that is not loopback, as seen from outside."""
    found = [
        one.address
        for addresses in psutil.net_if_addrs().values()
        for one in addresses
        if one.family is socket.AF_INET and not one.address.startswith("127.")
    ]
    return found[0] if found else "192.0.2.1"


def _poisoned_environment(desk: Desk) -> None:
    """A damaged package and a changed file are found; the first needs --fresh."""
    assert desk.run("stop", "box").returncode == 0
    release = desk.status()["release"]
    assert desk.status()["pid"] is None
    site = next((desk.root / "envs" / release["env"] / "lib").glob("python3*")) / "site-packages"
    (site / "fastapi").mkdir()
    (site / "fastapi" / "__init__.py").write_text("raise ImportError('poisoned')\n")
    owner = site.stat().st_uid
    for path in (site / "fastapi", site / "fastapi" / "__init__.py"):
        os.chown(path, owner, -1)
    (desk.root / "code" / release["code"] / "lib" / "api" / "app.py").write_text("raise ImportError\n")
    refused = desk.deploy()
    assert refused.returncode == 1
    assert "as api/app.py was changed on the box" in refused.stderr
    assert refused.stderr.splitlines()[-1].startswith("error: the new version cannot be imported"), (
        refused.stderr
    )
    assert "poisoned" in refused.stderr.splitlines()[-1]
    fresh = desk.deploy("--fresh", "--no-smoke")
    assert fresh.returncode == 0, fresh.stderr
    assert desk.status()["release"]["env"] != release["env"]


def _broken_version(desk: Desk, folder: Path) -> None:
    """A version whose worker cannot start: its log is shown, and the former release serves again."""
    before = desk.status()["release"]["number"]
    broken = packages(folder / "broken")
    (broken / "worker" / "__main__.py").write_text("raise SystemExit('this worker is broken')\n")
    failed = desk.deploy(code=broken)
    assert failed.returncode == 1
    assert "this worker is broken" in failed.stderr
    assert f"release {before} serves again" in failed.stderr.splitlines()[-1]
    assert desk.status()["release"]["number"] == before
    assert desk.captured_and_read_back() > 4


def _rollback(desk: Desk) -> None:
    """A good new version is deployed and rolled back, by hand."""
    before = desk.status()["release"]
    newer = packages(desk.folder / "newer")
    (newer / "worker" / "added.py").write_text('"""Added."""\n')
    assert desk.deploy("--no-smoke", code=newer).returncode == 0
    assert desk.status()["release"]["code"] != before["code"]
    assert desk.run("rollback", "box").returncode == 0
    assert desk.status()["release"] == before
    logs = desk.run("logs", "box", "--lines", "5")
    assert "ready: " in logs.stdout


def _ports(desk: Desk, server: SshServer, wait: Callable[..., None]) -> None:
    """Another program on the port is named and left; a stale process of ours is ended."""
    assert desk.run("stop", "box").returncode == 0
    program = f"import socket, time; s = socket.create_server(('127.0.0.1', {desk.port})); time.sleep(600)"
    for variables, is_ours in (("A=1", False), (f"ACTOGRAPH_HOME={desk.root}/home", True)):
        words = f'env {variables} {desk.python} -c "{program}" >/dev/null 2>&1 & echo $!'
        pid = int(subprocess.check_output([*server.ssh.split(), "box", words], text=True))
        process = psutil.Process(pid)
        wait(partial(_listens, process))
        done = desk.deploy("--no-smoke")
        assert (done.returncode == 0) is is_ours, done.stderr
        assert f"pid {pid}" in done.stderr
        assert process.is_running() is not is_ours
        if not is_ours:
            process.kill()
    assert desk.captured_and_read_back() > 4


def _listens(process: psutil.Process) -> bool:
    return any(one.status == psutil.CONN_LISTEN for one in process.net_connections())


def _experiment(desk: Desk) -> None:
    """One file deploys, evaluates and reports; the second run finds everything done."""
    shutil.copy(PROBLEMS, desk.folder / "problems.jsonl")
    (desk.folder / "night.yaml").write_text(
        "name: night\ndeploy: {box: box}\n"
        "evaluate: {base: {task: gsm8k, dataset: problems.jsonl, limit: 2, sampling: {max_tokens: 8}}}\n"
        "report: {}\n"
    )
    for _ in range(2):
        done = subprocess.run(
            [*ACTOGRAPH, "run", "night.yaml"], cwd=desk.folder, capture_output=True, text=True, check=False,
            env=os.environ | {"ACTOGRAPH_HOME": str(desk.folder)}, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        # the tunnel may have another port by then
        assert desk.run("tunnel", "box", "--close").returncode == 0
    assert "evaluate: done before" in done.stderr
    assert (desk.folder / "runs" / "night" / "report.md").is_file()


def _destroyed(desk: Desk, server: SshServer, wait: Callable[..., None]) -> None:
    """Nothing is left but the folder to keep, no process and no tunnel."""
    done = desk.run("destroy", "box", "--yes", "--keep", "home/artifacts")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in server.home.iterdir()] == ["actograph"]
    assert [path.name for path in desk.root.iterdir()] == ["home"]
    assert [path.name for path in (desk.root / "home").iterdir()] == ["artifacts"]
    wait(lambda: server.processes() == [])
    assert desk.run("status").stdout.count("\n") == 1, "the headers alone"
