"""Commands and environment of docker-compose.yml and the Dockerfile, outside of containers."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from actograph.cli.main import main
from actograph.demo import MODEL_DIR
from actograph.stack.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.integration]

REPO = Path(__file__).resolve().parents[3]


def substituted(value: str | None, given: dict[str, str]) -> str | None:
    """`${NAME:-default}` and `${NAME:?message}` as compose reads them; None passes the variable on."""
    if value is None:
        return None

    def put(match: re.Match[str]) -> str:
        name, operator, rest = match.groups()
        if operator == ":?" and not given.get(name):
            raise AssertionError(f"{name}: {rest}")
        return given.get(name) or (rest if operator == ":-" else "")

    return re.sub(r"\$\{(\w+)(?:(:[-?])([^}]*))?\}", put, value)


def command_of(target: str) -> list[str]:
    """The CMD of a stage of the Dockerfile."""
    stage = (REPO / "Dockerfile").read_text().split(f" AS {target}\n")[1].split("\nFROM ")[0]
    found = re.search(r"^CMD (\[.*\])$", stage, re.MULTILINE)
    assert found is not None
    return list(yaml.safe_load(found[1]))


@pytest.fixture
def started(tmp_path: Path, redis_url: str, new_postgres: Callable[[], str]) -> Iterator[tuple[str, str]]:
    """API and worker as compose starts them; their URL and key."""
    compose: dict[str, Any] = yaml.safe_load((REPO / "docker-compose.yml").read_text())
    subprocess.run(["sh", str(REPO / "deploy/secrets.sh"), str(tmp_path)], check=True)
    secrets, port = tmp_path / "secrets", free_port("127.0.0.1")
    (secrets / "actograph_database_url").write_text(new_postgres())
    given = {"ACTOGRAPH_MODEL": f"demo={MODEL_DIR}"}
    # what containers and their network give
    here = {
        "ACTOGRAPH_BROKER_URL": redis_url,
        "ACTOGRAPH_ARTIFACT_URL": (tmp_path / "data/artifacts").as_uri(),
        "ACTOGRAPH_SECRETS_DIR": str(secrets),
        "ACTOGRAPH_HOME": str(tmp_path / "data"),
        "ACTOGRAPH_HOST": "127.0.0.1",
        "ACTOGRAPH_PORT": str(port),
        "ACTOGRAPH_DATA_ROOTS": str(tmp_path),
        "HF_HOME": str(tmp_path / "models"),
        "HF_HUB_OFFLINE": "1",
        "HF_TOKEN_PATH": str(secrets / "hf_token"),
        "AWS_SHARED_CREDENTIALS_FILE": str(secrets / "aws_credentials"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    with ExitStack() as running:
        for name in ("api", "worker"):
            service = compose["services"][name]
            own = {key: substituted(value, given) for key, value in service["environment"].items()}
            environment = {key: value for key, value in own.items() if value is not None} | here
            log = running.enter_context((tmp_path / f"{name}.log").open("w"))
            process = subprocess.Popen(
                command_of(service["build"]["target"]),
                cwd=REPO,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            running.callback(process.wait, int(service.get("stop_grace_period", "10s").removesuffix("s")))
            running.callback(process.send_signal, signal.SIGTERM)
        yield f"http://127.0.0.1:{port}", (secrets / "actograph_api_keys").read_text()


def test_the_smoke_test_passes_on_what_compose_runs(
    started: tuple[str, str],
    wait: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, key = started
    monkeypatch.setenv("ACTOGRAPH_API_KEY", key)
    wait(lambda: main(["--url", url, "models", "structure", "demo"]) == 0)
    capsys.readouterr()
    code = main(["smoke", url, "--model", "demo"])
    logs = "".join((tmp_path / f"{name}.log").read_text() for name in ("api", "worker"))
    assert code == 0, capsys.readouterr().out + logs
    assert key not in logs


def test_the_health_check_of_compose_is_a_command_that_works(started: tuple[str, str], wait: Any) -> None:
    compose = yaml.safe_load((REPO / "docker-compose.yml").read_text())
    _, *check = compose["services"]["api"]["healthcheck"]["test"]
    line = shlex.join(check).replace("http://127.0.0.1:8420", started[0])
    wait(
        lambda: (
            subprocess.run(shlex.split(line.replace("python", sys.executable, 1)), check=False).returncode
            == 0
        )
    )
