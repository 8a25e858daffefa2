"""Both distributions: their files, the client in an empty environment, the service from the two wheels."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.availability import unavailable
from tests.support.isolated_python import python_with
from tests.support.marks import REPO
from tests.support.servers import Unavailable

pytestmark = pytest.mark.integration

BUILD_TOOLS = ("build==1.6.1", "hatchling==1.33.0")
#: rooms of each distribution, and the folder of its pyproject.toml
DISTRIBUTIONS = {
    "actograph": (("actograph",), REPO),
    "actograph_server": (("api", "storage", "worker"), REPO / "server"),
}
#: these files besides Python's must be in a wheel; the comparison with git covers all others
DATA = {
    "actograph/demo/model/model.safetensors",
    "actograph/demo/problems.jsonl",
    "actograph/py.typed",
    "actograph/tasks/gsm8k_cot_examples.jsonl",
    "api/answer_examples.json",
    "storage/index/migrations/script.py.mako",
    "worker/engine/nnsight.yaml",
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
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of each distribution, built from its sdist."""
    try:
        python = python_with("build", " ".join(BUILD_TOOLS), BUILD_TOOLS)
    except Unavailable as error:
        unavailable(str(error))
    out = tmp_path_factory.mktemp("dist")
    built = {}
    for name, (_, folder) in DISTRIBUTIONS.items():
        done = run(python, "-m", "build", "--no-isolation", "--outdir", out, folder, cwd=out)
        assert done.returncode == 0, done.stderr
        [built[name]] = out.glob(f"{name}-*.whl")
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


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_wheels_hold_every_file_of_their_rooms_and_no_other(wheels: dict[str, Path], name: str) -> None:
    rooms, _ = DISTRIBUTIONS[name]
    listed = subprocess.run(["git", "ls-files", *rooms], cwd=REPO, capture_output=True, text=True, check=True)
    tracked = {file for file in listed.stdout.splitlines() if (REPO / file).exists()}
    with zipfile.ZipFile(wheels[name]) as wheel:
        files = {file for file in wheel.namelist() if ".dist-info/" not in file}
        assert any(file.endswith("licenses/LICENSE") for file in wheel.namelist())
    assert files == tracked
    assert {file for file in DATA if file.startswith(rooms)} <= files


def test_an_sdist_holds_no_link_that_leads_out_of_it(wheels: dict[str, Path]) -> None:
    for wheel in wheels.values():
        with tarfile.open(wheel.with_name(wheel.name.replace("-py3-none-any.whl", ".tar.gz"))) as sdist:
            assert [member.name for member in sdist if not member.isreg()] == []


def test_both_distributions_have_one_version() -> None:
    projects = {
        name: tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        for name, (_, folder) in DISTRIBUTIONS.items()
    }
    version = projects["actograph"]["version"]
    assert projects["actograph_server"]["version"] == version
    assert f"actograph=={version}" in projects["actograph_server"]["dependencies"]
    extras = projects["actograph"]["optional-dependencies"]
    assert extras["server"] == [f"actograph-server=={version}"]
    assert extras["worker"] == [f"actograph-server[worker]=={version}"]
    assert len({project["requires-python"] for project in projects.values()}) == 1


def test_the_client_works_alone(wheels: dict[str, Path], tmp_path: Path) -> None:
    fresh = Environment(tmp_path / "venv")
    installed = fresh.install("--only-binary=:all:", "-c", REPO / "constraints.txt", wheels["actograph"])
    if installed.returncode:
        unavailable(f"no package index: {installed.stderr[-400:]}")

    code = "import sys, importlib.util as u, actograph.client; print([*filter(u.find_spec, sys.argv[1:])])"
    found = fresh.run("python", "-c", code, "torch", "fastapi", "sqlalchemy", "api", "storage", "worker")
    assert found.stdout.strip() == "[]", found.stderr

    helped = fresh.run("actograph", "--help")
    assert helped.returncode == 0 and "eval" in helped.stdout
    line = {"id": "q1", "completion": "#### 5", "gold": "2 + 3 = 5\n#### 5"}
    (tmp_path / "completions.jsonl").write_text(json.dumps(line) + "\n")
    scored = fresh.run("actograph", "eval", "score", "completions.jsonl", "--scorer", "numeric")
    assert json.loads(scored.stdout)["scores"]["numeric"]["correct"] is True
    unreachable = fresh.run("actograph", "jobs", "list", ACTOGRAPH_URL="http://127.0.0.1:9")
    assert unreachable.returncode not in (0, 2) and "Traceback" not in unreachable.stderr
    for command in (("up", "--model", "demo"), ("demo",)):
        refused = fresh.run("actograph", *command, ACTOGRAPH_HOME=str(tmp_path / "home"))
        assert refused.returncode != 0
        [message] = refused.stderr.splitlines()
        assert "pip install 'actograph[worker]'" in message


def test_the_two_wheels_run_the_demo(wheels: dict[str, Path], tmp_path: Path) -> None:
    """Service, worker and data files come from the wheels, other packages from this environment."""
    fresh = Environment(tmp_path / "venv")
    installed = fresh.install("--no-deps", "--no-index", *wheels.values())
    assert installed.returncode == 0, installed.stderr
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(fresh.run("python", "-c", code).stdout.strip())
    # a folder that a .pth file adds comes last, and its own .pth files, of editable installs, are not read
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    code = "import actograph, api, storage, worker; print(api.__file__, worker.__file__)"
    found = fresh.run("python", "-c", code)
    assert found.stdout.count(str(site)) == 2, found.stderr

    demo = fresh.run("actograph", "demo", "--limit", "8", "--home", tmp_path / "home")
    assert demo.returncode == 0, demo.stderr
    assert list((tmp_path / "home" / "artifacts" / "sessions").iterdir())
