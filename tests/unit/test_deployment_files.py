"""The compose file, the Dockerfile and the tasks of rented machines speak of things that exist."""

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from actograph.cli.main import app
from actograph.settings import Settings

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((REPO / "docker-compose.yml").read_text())
    return loaded


def test_compose_runs_redis_postgres_s3_api_and_workers(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {"redis", "postgres", "s3", "api", "upkeep", "worker", "analysis"}
    used = {volume.split(":")[0] for s in compose["services"].values() for volume in s.get("volumes", [])}
    assert {volume for volume in used if "$" not in volume} == set(compose["volumes"])


@pytest.mark.parametrize("name", ["api", "worker"])
def test_compose_sets_only_settings_that_exist(compose: dict[str, Any], name: str) -> None:
    ours = [key for key in compose["services"][name]["environment"] if key.startswith("ACTOGRAPH_")]
    assert len(ours) >= 5
    assert {key.removeprefix("ACTOGRAPH_").lower() for key in ours} <= set(Settings.model_fields)


def test_compose_passes_secrets_as_files(compose: dict[str, Any], tmp_path: Path) -> None:
    """The script writes every file that compose mounts, and the settings read them."""
    command = ["sh", str(REPO / "deploy/secrets.sh"), str(tmp_path)]
    subprocess.run(command, check=True)
    folder = tmp_path / "secrets"
    before = {path.name: path.read_text() for path in folder.iterdir()}
    subprocess.run(command, check=True)
    assert {path.name: path.read_text() for path in folder.iterdir()} == before, "existing ones are kept"
    assert folder.stat().st_mode & 0o077 == 0
    assert set(before) == {Path(one["file"]).name for one in compose["secrets"].values()}
    settings = Settings(_secrets_dir=folder)
    assert settings.api_keys == (before["actograph_api_keys"],)
    assert before["postgres_password"] in settings.database_url
    text = (REPO / "docker-compose.yml").read_text()
    assert not re.search(r"PASSWORD: |API_KEYS: |TOKEN: ", text), "no secret is an environment variable"


def test_compose_builds_targets_that_the_dockerfile_has(compose: dict[str, Any]) -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", (REPO / "Dockerfile").read_text(), re.MULTILINE))
    assert {
        compose["services"][name]["build"]["target"] for name in ("api", "upkeep", "worker", "analysis")
    } <= stages


def test_the_gpu_file_extends_a_service_that_exists(compose: dict[str, Any]) -> None:
    gpu = yaml.safe_load((REPO / "docker-compose.gpu.yml").read_text())
    assert set(gpu["services"]) <= set(compose["services"])


def test_the_dockerfile_copies_and_runs_what_exists() -> None:
    text = (REPO / "Dockerfile").read_text()
    for sources in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        assert all((REPO / source).exists() for source in sources.split())
    for module in re.findall(r"-m\W+((?:api|storage|worker)[a-z.]*)", text):
        path = REPO.joinpath(*module.split("."))
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


def test_tasks_of_rented_machines_name_flags_settings_and_extras_that_exist(
    subtests: pytest.Subtests,
) -> None:
    """tests/soak/packaging has them read by SkyPilot and dstack."""
    sky = yaml.safe_load((REPO / "deploy/sky.yaml").read_text())
    dstack = yaml.safe_load((REPO / "deploy/dstack.yml").read_text())
    extras = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    tasks = {
        "sky": (sky["setup"] + sky["run"], {*sky["envs"], *sky["secrets"]}),
        "dstack": ("\n".join(dstack["commands"]), {line.partition("=")[0] for line in dstack["env"]}),
    }
    for name, (script, known) in tasks.items():
        with subtests.test(name):
            assert set(re.findall(r"\$([A-Z_]+)", script)) <= known
            ours = {one.removeprefix("ACTOGRAPH_").lower() for one in known if one.startswith("ACTOGRAPH_")}
            assert ours and ours <= set(Settings.model_fields)
            [installed] = re.findall(r"-e '\.\[([\w,]+)\]'", script)
            assert set(installed.split(",")) <= set(extras)
            [words] = re.findall(r"actograph drain (.+)", script)
            drain = typer.main.get_command(app).commands["drain"]  # type: ignore[attr-defined]
            given = drain.make_context("drain", shlex.split(words)).params
            assert (str(given["file"]), str(given["folder"])) == ("$EXPERIMENT", "~/results")
