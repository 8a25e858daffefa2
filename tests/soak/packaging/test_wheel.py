"""The wheel, made from the sdist, installed in empty environments outside the checkout, and run there."""

import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from actograph.stack.ports import free_port
from tests.support.availability import unavailable
from tests.support.servers import Unavailable
from tests.support.waiting import wait_until
from tests.support.wheels import wheel_of_sdist

pytestmark = pytest.mark.integration

REPO = Path(__file__).resolve().parents[3]
PYTHONS = ("3.11", "3.12", "3.13")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ROOMS = ("api", "evals", "storage", "worker")


def environment(**more: str) -> dict[str, str]:
    """Variables of a shell that knows nothing of this checkout."""
    ours = ("ACTOGRAPH_", "PYTHON", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | more


def run(*command: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(
        words, cwd=cwd, env=environment(**more), capture_output=True, text=True, check=False
    )


def interpreter(version: str) -> Path:
    """A Python of this version: of this process, on PATH or of pyenv or uv. Skips if there is none."""
    name = f"python{version}"
    folders = [Path(sys.base_prefix) / "bin", *map(Path, os.environ["PATH"].split(os.pathsep))]
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"]
    roots += [Path.home() / ".local/share/uv/python"]
    folders += [found for root in roots for found in sorted(root.glob(f"*{version}*/bin"))]
    code = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"
    for path in (folder / name for folder in folders):
        if path.exists() and run(path, "-c", code, cwd=Path("/")).stdout.strip() == version:
            return path
    unavailable(f"no Python {version} with ensurepip")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return wheel_of_sdist(tmp_path_factory.mktemp("dist"))
    except Unavailable as error:
        unavailable(str(error))


class Environment:
    """An empty virtual environment, and a folder to work in."""

    def __init__(self, folder: Path, python: Path) -> None:
        done = run(python, "-m", "venv", folder / "venv", cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
        self.bin, self.folder = folder / "venv/bin", folder / "work"
        self.folder.mkdir()

    def run(self, program: str, *arguments: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
        return run(self.bin / program, *arguments, cwd=self.folder, **more)

    def install(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        pip = (self.bin / "python", "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary=:all:")
        return run(*pip, "-c", REPO / "constraints.txt", *arguments, cwd=self.folder)

    def install_or_skip(self, *arguments: str | Path) -> None:
        done = self.install(*arguments)
        if done.returncode:
            unavailable(f"no package index: {done.stderr[-400:]}")

    def assert_no_room_is_importable(self) -> None:
        for room in ROOMS:
            assert f"No module named '{room}'" in self.run("python", "-c", f"import {room}").stderr

    def assert_the_client_loads_no_torch(self) -> None:
        code = "import sys, actograph.client; print({'torch', 'fastapi', 'sqlalchemy'} & {*sys.modules})"
        assert self.run("python", "-c", code).stdout.strip() == "set()"


@pytest.fixture(params=PYTHONS)
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Environment]:
    yield Environment(tmp_path, interpreter(request.param))
    shutil.rmtree(tmp_path / "venv")  # up to 2 GB


def test_the_service_works(wheel: Path, fresh: Environment) -> None:
    """Everything that `actograph` starts: a service with its model, and programs of its own."""
    if sys.platform == "linux":
        pins = (REPO / "constraints.txt").read_text().split()
        [pin] = [line for line in pins if line.startswith("torch==")]
        quick = ("--retries", "0", "--timeout", "10", "--extra-index-url", CPU_INDEX)
        if fresh.install(*quick, "--no-deps", f"{pin}+cpu").returncode:
            unavailable("no torch for CPUs for this Python; another one would bring gigabytes of CUDA")
    fresh.install_or_skip(f"{wheel}[service]")
    fresh.assert_no_room_is_importable()
    fresh.assert_the_client_loads_no_torch()
    where = fresh.run("python", "-c", "import actograph.demo as d; print(d.MODEL_DIR)")
    model = where.stdout.strip()
    assert model.startswith(str(fresh.bin.parent))

    demo = fresh.run("actograph", "demo", "--limit", "20")
    assert demo.returncode == 0, demo.stderr
    assert "completed 20/20" in demo.stderr
    assert "Kept:      20 sessions" in demo.stdout
    home = {"ACTOGRAPH_HOME": str(fresh.folder / ".demo")}
    log = (fresh.folder / ".demo/logs/worker-1.log").read_text()
    assert "Traceback" not in log
    for command, said in {
        ("doctor", "--port", "0", "--model", model): "ok     index",
        ("estimate", "--card", "24GiB", "--model", model): "",
        ("backup", "saved"): "21 sessions and uploads",
        ("service", "migrate", "--check"): "database at schema",
    }.items():
        done = fresh.run("actograph", *command, **home)
        assert done.returncode == 0, done.stdout + done.stderr
        assert said in done.stdout


def test_the_server_works_without_torch(wheel: Path, fresh: Environment) -> None:
    """API, page and keys, on a machine that holds no model."""
    fresh.install_or_skip(f"{wheel}[server]")
    fresh.assert_no_room_is_importable()
    assert fresh.run("python", "-c", "import torch").returncode != 0
    home = {"ACTOGRAPH_HOME": str(fresh.folder / "home")}
    for command in (("migrate",), ("create-key", "root")):
        done = fresh.run("actograph", "service", *command, **home)
        assert done.returncode == 0, done.stderr
    key, port = done.stdout.strip(), free_port("127.0.0.1")
    process = subprocess.Popen(
        [fresh.bin / "actograph", "service", "api"], cwd=fresh.folder,
        env=environment(**home, ACTOGRAPH_PORT=str(port), ACTOGRAPH_BROKER_URL="redis://127.0.0.1:9"),
    )  # fmt: skip
    try:

        def read(path: str) -> bytes:
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
            request.add_header("Authorization", f"Bearer {key}")
            with urllib.request.urlopen(request, timeout=60) as answer:
                found: bytes = answer.read()
                return found

        def serves() -> bool:
            assert process.poll() is None, "the API ended"
            try:
                return bool(read("/livez"))
            except OSError:
                return False

        wait_until(serves)
        assert b"{" in read("/static/style.css")
        assert b"root" in read("/v1/keys")
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM  # uvicorn stops in order, then raises it again


def test_the_client_works_alone(wheel: Path, fresh: Environment) -> None:
    fresh.install_or_skip(wheel)
    fresh.assert_no_room_is_importable()
    fresh.assert_the_client_loads_no_torch()
    code = "import sys, importlib.util as u; print([*filter(u.find_spec, sys.argv[1:])])"
    found = fresh.run("python", "-c", code, "torch", "fastapi", "sqlalchemy", "celery")
    assert found.stdout.strip() == "[]", found.stderr

    helped = fresh.run("actograph", "--help")
    assert helped.returncode == 0 and "eval" in helped.stdout
    unreachable = fresh.run("actograph", "jobs", "list", ACTOGRAPH_URL="http://127.0.0.1:9")
    assert unreachable.returncode not in (0, 2) and "Traceback" not in unreachable.stderr
    estimate = ("estimate", "--card", "24GiB", "--model", "a/b")
    for command in (("up", "a/b"), ("demo",), ("worker",), ("service", "api"), estimate):
        refused = fresh.run("actograph", *command, ACTOGRAPH_HOME=str(fresh.folder / "home"))
        assert refused.returncode != 0
        [message] = refused.stderr.splitlines()
        assert "pip install 'actograph[service]'" in message
