"""The wheel: its files, and the client in an empty environment. `make demo` covers the checkout."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.availability import unavailable
from tests.support.isolated_python import python_with
from tests.support.servers import Unavailable

pytestmark = pytest.mark.integration

REPO = Path(__file__).resolve().parents[3]
BUILD_TOOLS = ("build==1.6.1", "hatchling==1.33.0")
#: these files besides Python's must be in a wheel; the comparison with git covers all others
DATA = {
    "actograph/demo/model/model.safetensors",
    "actograph/demo/problems.jsonl",
    "actograph/py.typed",
}


def environment(**more: str) -> dict[str, str]:
    """Variables of a shell that knows nothing of this checkout."""
    ours = ("ACTOGRAPH_", "PYTHON", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | more


def run(*command: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(
        words, cwd=cwd, env=environment(**more), capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist."""
    try:
        python = python_with("build", " ".join(BUILD_TOOLS), BUILD_TOOLS)
    except Unavailable as error:
        unavailable(str(error))
    out = tmp_path_factory.mktemp("dist")
    done = run(python, "-m", "build", "--no-isolation", "--outdir", out, REPO, cwd=out)
    assert done.returncode == 0, done.stderr
    [built] = out.glob("*.whl")
    return built


class Environment:
    """An empty virtual environment, without pip."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self.bin = folder / "bin"
        self._outside = folder.parent

    def run(self, program: str, *arguments: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
        return run(self.bin / program, *arguments, cwd=self._outside, **more)

    def install(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        pip = (sys.executable, "-m", "pip", "--python", self.bin / "python", "install", "--quiet")
        return run(*pip, *arguments, cwd=self._outside)


def test_the_wheel_holds_every_file_of_actograph_and_no_other(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "actograph"], cwd=REPO, capture_output=True, text=True, check=True
    )
    tracked = {file for file in listed.stdout.splitlines() if (REPO / file).exists()}
    with zipfile.ZipFile(wheel) as archive:
        files = {file for file in archive.namelist() if ".dist-info/" not in file}
        assert any(file.endswith("licenses/LICENSE") for file in archive.namelist())
    assert files == tracked
    assert files >= DATA


def test_the_client_works_alone(wheel: Path, tmp_path: Path) -> None:
    fresh = Environment(tmp_path / "venv")
    installed = fresh.install("--only-binary=:all:", "-c", REPO / "constraints.txt", wheel)
    if installed.returncode:
        unavailable(f"no package index: {installed.stderr[-400:]}")

    code = "import sys, importlib.util as u, actograph.client; print([*filter(u.find_spec, sys.argv[1:])])"
    found = fresh.run("python", "-c", code, "torch", "fastapi", "sqlalchemy", "api", "storage", "worker")
    assert found.stdout.strip() == "[]", found.stderr

    helped = fresh.run("actograph", "--help")
    assert helped.returncode == 0 and "eval" in helped.stdout
    unreachable = fresh.run("actograph", "jobs", "list", ACTOGRAPH_URL="http://127.0.0.1:9")
    assert unreachable.returncode not in (0, 2) and "Traceback" not in unreachable.stderr
    for command in (("up", "--model", "demo"), ("demo",)):
        refused = fresh.run("actograph", *command, ACTOGRAPH_HOME=str(tmp_path / "home"))
        assert refused.returncode != 0
        [message] = refused.stderr.splitlines()
        assert "pip install -e '.[worker]'" in message
