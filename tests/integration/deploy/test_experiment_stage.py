"""The stage `deploy` of an experiment, with the stand-in for ssh. A stand-in runs the later stages."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actograph.client import Client
from actograph.deploy import deploy
from actograph.experiment import run as experiment_run
from tests.integration.deploy.conftest import Desk

TEXT = """\
name: far
deploy: {{target: me@box, python: {python}, model: {model}}}
evaluate:
  base: {{dataset: {{path: problems.jsonl}}}}
"""


class Recorded:
    """Takes the place of `Run`, and of the smoke test."""

    made: list["Recorded"]

    def __init__(self, client: Client, *_: Any, service: str = "", **__: Any) -> None:
        self.url, self.service, self.stages = client.base_url, service, [""]
        self.made.append(self)

    def run(self, stages: list[str] | None = None) -> None:
        self.stages = stages or []

    def plan(self, stages: list[str]) -> dict[str, bool]:
        return dict.fromkeys(stages, False)

    def estimates(self) -> list[Any]:
        return []


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    Recorded.made = []
    monkeypatch.setattr(experiment_run, "ExperimentRun", Recorded)
    monkeypatch.setattr(deploy, "Smoke", lambda *_: Recorded.__new__(Recorded))
    return Recorded.made


@pytest.fixture
def write(desk: Desk, tmp_path: Path) -> Callable[[str], Path]:
    def make(model: str) -> Path:
        file = tmp_path / "far.yaml"
        file.write_text(TEXT.format(python=desk.python, model=model))
        return file

    return make


def test_later_stages_run_on_the_box(
    desk: Desk, write: Callable[[str], Path], runs: list[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret-of-mine")
    flags = ("--ssh", desk.ssh, "--env", "HF_TOKEN")
    assert desk.deploy("--model", "former") == 0, desk.said  # with a port of the test's own
    assert desk.actograph("run", write("demo"), *flags) == 0, desk.said
    assert (desk.served()["options"]["--model"], desk.served()["HF_TOKEN"]) == ("demo", "secret-of-mine")
    first = desk.served()["pid"]
    assert desk.actograph("run", write("demo"), *flags) == 0, desk.said
    assert "nothing was restarted" in desk.said
    # these need the tunnel alone
    assert desk.run("tunnel", "--close") == 0
    assert desk.actograph("run", write("other"), "--stages", "evaluate") == 0, desk.said
    assert desk.served()["pid"] == first
    assert desk.run("tunnel", "--close") == 0
    assert desk.actograph("run", write("other"), "--dry-run") == 0, desk.said
    assert desk.served()["pid"] == first
    url = desk.status()["url"]
    assert [(one.url, one.service) for one in runs] == [(url, "me@box .actograph-deploy")] * 4
    assert [one.stages for one in runs] == [["evaluate"]] * 3 + [[""]]


def test_a_url_is_the_service_of_all_stages_but_deploy(
    desk: Desk, write: Callable[[str], Path], runs: list[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "http://127.0.0.1:1"
    assert desk.actograph("--url", url, "run", write("demo"), "--stages", "evaluate") == 0, desk.said
    assert desk.actograph("--url", url, "run", write("demo"), "--dry-run") == 0, desk.said
    assert [(one.url, one.service) for one in runs] == [(url, url)] * 2
    assert desk.actograph("--url", url, "run", write("demo")) == 1
    assert f"error: --url {url} is not the service that stage `deploy` starts on me@box" in desk.said
    assert "or run on that service with --stages evaluate" in desk.said
    monkeypatch.setenv("ACTOGRAPH_URL", url)
    assert desk.actograph("run", write("demo"), "--stages", "evaluate") == 1
    assert f"the experiment runs on me@box, not on {url} (ACTOGRAPH_URL)" in desk.said
    assert len(runs) == 2, "there is no tunnel, and ACTOGRAPH_URL does not take its place"


def test_nothing_runs_after_a_failed_deployment(
    desk: Desk, write: Callable[[str], Path], runs: list[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--ssh", desk.ssh, "--env", "HF_TOKEN")
    assert desk.deploy("--model", "demo") == 0, desk.said
    assert desk.actograph("run", write("broken"), *flags) == 1
    assert "error: --env HF_TOKEN: this shell has no such variable" in desk.said
    monkeypatch.setenv("HF_TOKEN", "secret-of-mine")
    assert desk.actograph("run", write("broken"), *flags) == 1
    assert desk.said.splitlines()[-1].endswith("release 1 serves again")
    assert desk.served()["options"]["--model"] == "demo"
    assert runs == []


def test_a_file_names_no_commands_and_no_variables(
    desk: Desk, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """A file may be someone else's: what runs here, and what leaves this machine, comes from flags."""
    ran = tmp_path / "ran"
    for field, value, said in [
        ("ssh", f"touch {ran}", "use `actograph run --ssh`"),
        ("env", "[HF_TOKEN]", "use `actograph run --env`"),
        ("options", "--user-tool x=os:system", "names no functions"),
    ]:
        with subtests.test(field=field):
            file = tmp_path / "far.yaml"
            file.write_text(f"name: far\ndeploy: {{target: me@box, {field}: {value}}}\nevaluate: {{}}\n")
            assert desk.actograph("run", file) == 1
            assert f"{file}:2: deploy.{field}: " in desk.said
            assert said in desk.said
            assert not ran.exists()
    file.write_text("name: near\nmodel: {model_id: demo}\n")
    assert desk.actograph("run", file, "--env", "HF_TOKEN") == 1
    assert "need a stage `deploy`" in desk.said
