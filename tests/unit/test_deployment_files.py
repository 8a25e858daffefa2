"""The compose file and Dockerfile speak of things that exist; the docs' links lead somewhere."""

import json
import re
import shlex
import subprocess
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


def test_compose_runs_all_parts(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {
        *("redis", "postgres", "s3", "api", "worker", "analysis", "prometheus", "grafana")
    }
    used = {volume.split(":")[0] for s in compose["services"].values() for volume in s.get("volumes", [])}
    assert {volume for volume in used if not volume.startswith("./")} == set(compose["volumes"])


@pytest.mark.parametrize("name", ["api", "worker", "analysis"])
def test_compose_sets_only_settings_that_exist(compose: dict[str, Any], name: str) -> None:
    ours = [key for key in compose["services"][name]["environment"] if key.startswith("ACTOGRAPH_")]
    assert len(ours) >= 5
    assert {key.removeprefix("ACTOGRAPH_").lower() for key in ours} <= set(Settings.model_fields)


def test_compose_passes_secrets_as_files(compose: dict[str, Any], tmp_path: Path) -> None:
    """The script writes every file that compose mounts, and the settings read them."""
    command = ["sh", str(REPO / "deploy/compose/secrets.sh"), str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    folder = tmp_path / "secrets"
    before = {path.name: path.read_text() for path in folder.iterdir()}
    subprocess.run(command, check=True, capture_output=True)
    assert {path.name: path.read_text() for path in folder.iterdir()} == before, "existing ones are kept"
    assert folder.stat().st_mode & 0o077 == 0
    files = {name: Path(one["file"]).name for name, one in compose["secrets"].items()}
    assert set(before) == set(files.values()) - {"metrics.key"}
    assert all(set(one.get("secrets", [])) <= set(files) for one in compose["services"].values())
    assert set(before) == {name for name in files if name != "metrics_key"}
    settings = Settings(_secrets_dir=folder)
    assert settings.api_keys == (before["actograph_api_keys"].strip(),)
    assert before["postgres_password"].strip() in settings.database_url
    assert not settings.database_url.endswith("\n")
    for name in ("api", "worker", "analysis"):
        assert compose["services"][name]["secrets"] == ["actograph_api_keys", "actograph_database_url"]
    text = (REPO / "docker-compose.yml").read_text()
    assert not re.search(r"PASSWORD: |API_KEYS: ", text), "no secret is an environment variable"


def test_compose_builds_targets_that_the_dockerfile_has(compose: dict[str, Any]) -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", (REPO / "Dockerfile").read_text(), re.MULTILINE))
    assert {compose["services"][name]["build"]["target"] for name in ("api", "worker", "analysis")} <= stages


def test_the_gpu_file_extends_a_service_that_exists(compose: dict[str, Any]) -> None:
    gpu = yaml.safe_load((REPO / "docker-compose.gpu.yml").read_text())
    assert set(gpu["services"]) <= set(compose["services"])


def test_the_dockerfile_copies_and_runs_what_exists() -> None:
    text = (REPO / "Dockerfile").read_text()
    for sources in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        assert all((REPO / source).exists() for source in sources.split())
    for module in re.findall(r"-m\W+([a-z.]+)", text):
        path = REPO.joinpath(*module.split("."))
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


@pytest.mark.parametrize(
    "page", [REPO / "README.md", REPO / "CONTRIBUTING.md", *(REPO / "docs").glob("*.md")]
)
def test_links_between_the_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if not (page.parent / link).exists()]
    assert missing == []


def test_the_board_and_the_alerts_use_metrics_that_exist() -> None:
    page = (REPO / "docs" / "operate" / "monitoring.md").read_text(encoding="utf-8")
    known = set(re.findall(r"`(actograph_\w+)`", page)) | {"actograph_http_request_duration_seconds_bucket"}
    board = (REPO / "deploy/grafana/boards/actograph.json").read_text(encoding="utf-8")
    alerts = (REPO / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8")
    expressions = [target["expr"] for panel in json.loads(board)["panels"] for target in panel["targets"]]
    expressions += [rule["expr"] for group in yaml.safe_load(alerts)["groups"] for rule in group["rules"]]
    used = {name for expression in expressions for name in re.findall(r"actograph_\w+", expression)}
    assert len(used) > 10
    assert used <= known
    assert alerts.partition("\n")[2] in page, "the page shows the same alerts"


def test_compose_mounts_what_exists(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith("./") or (REPO / source).exists()


def test_rented_machines_run_commands_that_exist() -> None:
    sky = yaml.safe_load((REPO / "deploy/rent/skypilot.yaml").read_text())
    dstack = yaml.safe_load((REPO / "deploy/rent/dstack.yml").read_text())
    lines = [*sky["run"].splitlines(), *dstack["commands"]]
    drains = [shlex.split(line) for line in lines if "actograph drain" in line]
    assert len(drains) == 2
    command = typer.main.get_command(app)
    context = command.make_context("actograph", ["drain"], resilient_parsing=True)
    _, drain, _ = command.resolve_command(context, ["drain"])  # type: ignore[attr-defined]
    flags = {option for parameter in drain.params for option in parameter.opts}
    assert all({word for word in words if word.startswith("--")} <= flags for words in drains)
