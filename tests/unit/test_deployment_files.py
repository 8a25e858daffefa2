"""The compose file, the Dockerfile and the tasks of rented machines speak of things that exist."""

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer
import yaml

from actograph.cli.main import app
from actograph.contract.operations import QueueState
from actograph.contract.resources import SampleStatus
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


def test_compose_runs_commands_that_exist(compose: dict[str, Any]) -> None:
    commands = [s["command"] for s in compose["services"].values() if s.get("build") and "command" in s]
    assert len(commands) == 2
    for program, *words in commands:
        assert program == "actograph"
        _command(shlex.join(words))


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
    for sources in re.findall(r"^COPY ([^-].*) \S+$", text, re.MULTILINE):
        assert all((REPO / source).exists() for source in sources.split())
    commands = [json.loads(found) for found in re.findall(r"^CMD (.+)$", text, re.MULTILINE)]
    assert len(commands) == 2
    for command in commands:
        line = command[2].replace("exec ", "") if command[0] == "sh" else shlex.join(command)
        for one in line.split(" && "):
            program, *words = shlex.split(one)
            assert program == "actograph"
            _command(shlex.join(words))
    extras = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    installed = re.findall(r"whl\)\[(\w+)\]", text)
    assert len(installed) == 2
    assert set(installed) <= set(extras)


def _command(words: str) -> dict[str, Any]:
    """Parameters of a command line of ours, as its own parser reads them."""
    name, *given = shlex.split(words)
    found: Any = typer.main.get_command(app)
    found = found.commands[name]
    if hasattr(found, "commands"):
        name, *given = given
        found = found.commands[name]
    parameters: dict[str, Any] = found.make_context(name, given).params
    return parameters


def test_tasks_of_rented_machines_name_flags_settings_and_extras_that_exist(
    subtests: pytest.Subtests,
) -> None:
    """tests/soak/packaging has them read by SkyPilot and dstack."""
    read = {
        name: yaml.safe_load((REPO / "deploy" / name).read_text())
        for name in ("sky-night.yaml", "sky.yaml", "sky-worker.yaml", "dstack-night.yml", "dstack.yml")
    }
    extras = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, task in read.items():
        with subtests.test(name):
            script = "\n".join([task.get("setup", ""), task.get("run", ""), *task.get("commands", ())])
            known = {*task.get("envs", ()), *task.get("secrets", ())}
            known |= {line.partition("=")[0] for line in task.get("env", ())}
            assert set(re.findall(r"\$([A-Z_]+)", script)) <= known
            ours = {one.removeprefix("ACTOGRAPH_").lower() for one in known if one.startswith("ACTOGRAPH_")}
            assert ours <= set(Settings.model_fields)
            for installed in re.findall(r"-e '\.\[([\w,]+)\]'", script):
                assert set(installed.split(",")) <= set(extras)
            for words in re.findall(r"actograph (drain .+)", script):
                given = _command(words)
                assert (str(given["file"]), str(given["folder"])) == ("$EXPERIMENT", "~/results")
            for words in re.findall(r"actograph (worker .+)", script):
                assert {"model", "database_url", "artifact_url"} <= ours
                assert _command(words)["drain"]
    assert (
        read["sky.yaml"]["resources"]["accelerators"] == read["sky-worker.yaml"]["resources"]["accelerators"]
    )


def test_the_slurm_script_runs_a_command_that_exists() -> None:
    """tests/soak/e2e/test_slurm.py runs it."""
    script = (REPO / "deploy/slurm.sbatch").read_text()
    subprocess.run(["bash", "-n", str(REPO / "deploy/slurm.sbatch")], check=True)
    [words] = re.findall(r"^actograph (worker .+) &$", script, re.MULTILINE)
    given = _command(re.sub(r"\$\{\w+:-(\d+)\}", r"\1", words))
    [before] = re.findall(r"--signal=B:USR1@(\d+)", script)
    assert given["drain"]
    assert given["grace"] < int(before), "a task is queued again before its time is over"


@pytest.fixture(scope="module")
def manifests() -> list[dict[str, Any]]:
    """The manifests that the kustomization names."""
    folder = REPO / "deploy/kubernetes"
    named = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert {*named["resources"], "kustomization.yaml"} == {path.name for path in folder.iterdir()}
    read = [one for name in named["resources"] for one in yaml.safe_load_all((folder / name).read_text())]
    return [named, *read]


def _of_kind(manifests: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in manifests if one["kind"] == kind}


def test_kubernetes_manifests_agree_with_one_another_and_with_the_product(
    manifests: list[dict[str, Any]], subtests: pytest.Subtests
) -> None:
    deployments, services = _of_kind(manifests, "Deployment"), _of_kind(manifests, "Service")
    [settings] = _of_kind(manifests, "ConfigMap").values()
    [secret] = _of_kind(manifests, "Secret").values()
    assert set(deployments) == {"redis", "api", "upkeep", "analysis", "worker"}
    images = {one["name"] for one in manifests[0]["images"]}
    volumes_of_secrets = {"actograph_api_keys", "actograph_database_url", "aws_credentials", "hf_token"}
    assert volumes_of_secrets < set(secret["stringData"])
    assert not any(secret["stringData"].values()), "no secret is in the repository"
    for name, found in deployments.items():
        with subtests.test(name):
            template = found["spec"]["template"]
            assert found["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
            [container] = template["spec"]["containers"]
            if name == "redis":
                continue
            assert container["image"] in images
            variables = {*settings["data"], *(one["name"] for one in container["env"])}
            ours = {
                one.removeprefix("ACTOGRAPH_").lower() for one in variables if one.startswith("ACTOGRAPH_")
            }
            assert ours <= set(Settings.model_fields)
            assert {one["configMapRef"]["name"] for one in container["envFrom"]} == {
                settings["metadata"]["name"]
            }
            mounted = {one["name"]: one for one in template["spec"]["volumes"]}
            assert {one["name"] for one in container["volumeMounts"]} == set(mounted)
            assert mounted["secrets"]["secret"]["secretName"] == secret["metadata"]["name"]
            match container.get("command", []):
                case ["actograph", "service", *words]:
                    _command(shlex.join(["service", *words]))
                case ["actograph", *words]:
                    given = _command(shlex.join(words))
                    assert given["grace"] < template["spec"]["terminationGracePeriodSeconds"]
                case other:
                    assert (name, other) == ("api", [])
    for name, found in services.items():
        assert found["spec"]["selector"] == deployments[name]["spec"]["template"]["metadata"]["labels"]
    [worker] = deployments["worker"]["spec"]["template"]["spec"]["containers"]
    assert "nvidia.com/gpu" in worker["resources"]["limits"]
    [temporary] = [
        one["emptyDir"]["sizeLimit"]
        for one in deployments["worker"]["spec"]["template"]["spec"]["volumes"]
        if one["name"] == "temporary"
    ]
    assert int(temporary.removesuffix("Gi")) << 30 > Settings.model_fields["upload_disk_bytes"].default


def test_kubernetes_scales_by_numbers_that_the_queue_has(manifests: list[dict[str, Any]]) -> None:
    [scaled] = _of_kind(manifests, "ScaledObject").values()
    [access] = _of_kind(manifests, "TriggerAuthentication").values()
    [reference] = access["spec"]["secretTargetRef"]
    [secret] = _of_kind(manifests, "Secret").values()
    assert reference["key"] in secret["stringData"]
    assert scaled["spec"]["scaleTargetRef"]["name"] in _of_kind(manifests, "Deployment")
    shown = QueueState(
        jobs={}, samples={str(status): 1 for status in SampleStatus}, next=[], messages=0, workers={}
    )
    for trigger in scaled["spec"]["triggers"]:
        assert trigger["authenticationRef"]["name"] == access["metadata"]["name"]
        url = urlsplit(trigger["metadata"]["url"])
        assert url.hostname is not None
        assert (url.hostname.split(".")[0], url.port, url.path) == ("api", 8420, "/v1/queue")
        found: Any = shown.model_dump(mode="json")
        for part in trigger["metadata"]["valueLocation"].split("."):
            found = found[part]
        assert found == 1
