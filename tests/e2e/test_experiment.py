"""An experiment against the real service: it ends after each request that makes something, and goes on."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actograph.client import Client
from actograph.client.transport import Transport
from actograph.contract.errors import InvalidRequest
from actograph.demo import PROBLEMS
from actograph.experiment.experiment import read
from actograph.experiment.run import Run, RunFolder

TEXT = """\
name: founding
model: {model_id: demo, savepoints: [{name: middle, selector: resid_post.2}]}
evaluate:
  base: {dataset: problems.jsonl, limit: 5, sampling: {max_tokens: 48}, capture: {hooks: [middle]}}
  jobs:
    plain: {conditions: [{name: plain}, {name: career, suffix: This matters to me.}]}
    tools: {tools: calculator, tool_format: annotations}
analyse:
  jobs:
    outliers: {kind: outliers, sessions: {jobs: [plain]}, layer_share: 0, position_share: 0, threshold: 1.5}
    careers:
      kind: compare
      sessions: {jobs: [plain], condition: plain}
      other: {jobs: [plain], condition: career}
fetch: {activations: sampled}
report: {title: A <founding> experiment}
"""


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def die_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Ends the process when the service has answered, so often, a request that makes something there."""
    ask = Transport.request

    def arrange(path: str, times: int) -> None:
        left = [times]

        def request(self: Transport, method: str, asked: str, **options: Any) -> Any:
            answer = ask(self, method, asked, **options)
            left[0] -= (method, asked) == ("POST", path)
            if not left[0] and (method, asked) == ("POST", path):
                raise Killed
            return answer

        monkeypatch.setattr(Transport, "request", request)

    return arrange


def test_nothing_is_done_twice_and_nothing_is_missing(
    up: Callable[..., Any], tmp_path: Path, die_after: Callable[[str, int], None]
) -> None:
    shutil.copy(PROBLEMS, tmp_path / "problems.jsonl")
    file, folder, said = tmp_path / "founding.yaml", tmp_path / "run", []
    file.write_text(TEXT)
    service = up()
    service.await_ready()
    with Client(service.url) as client:

        def of_file() -> Run:
            return Run(client, read(file), RunFolder(folder), tmp_path, service="here", note=said.append)

        def run() -> None:
            of_file().run(read(file).stages)

        assert of_file().plan(["model", "evaluate"]) == {"model": False, "evaluate": False}
        assert {name: one.samples for name, one in of_file().estimates()} == {"plain": 10, "tools": 5}
        assert not list(client.files.list())
        assert not folder.exists()
        posts = [("/v1/models/load", 1), ("/v1/files", 1), *(("/v1/jobs", number) for number in (1, 2))]
        for path, times in (*posts, ("/v1/jobs", 3), ("/v1/jobs", 2)):
            die_after(path, times)
            with pytest.raises(Killed):
                run()
        die_after("nothing", 1)
        run()
        jobs = [job for job in client.jobs.list() if job.kind != "load"]
        assert sorted((job.status, job.progress.completed) for job in jobs) == [
            ("completed", 1), ("completed", 1), ("completed", 5), ("completed", 10),
        ]  # fmt: skip
        assert len(list(client.jobs.list(kind="load"))) == 1
        assert len(list(client.files.list())) == 1
        assert len(list(client.sessions.list())) == 17
        said.clear()
        run()
        assert said == [f"{stage}: done before" for stage in read(file).stages]
        assert len(list(client.jobs.list())) == 5
        file.write_text(TEXT.replace("sampled", "everything"))
        with pytest.raises(InvalidRequest, match=r"founding.yaml:15: fetch.activations"):
            run()
        file.write_text(TEXT.replace("sampled", "all"))
        run()
        again = {stage: "running" if stage == "fetch" else "done before" for stage in read(file).stages}
        assert [one for one in said if not one.startswith(" ")][5:] == [
            f"{stage}: {how}" for stage, how in again.items()
        ]
    state = json.loads((folder / "run.json").read_text())
    assert state["stages"]["model"]["identity"]["weights_sha256"]
    assert set(state["jobs"]) == {"plain", "tools", "outliers", "careers"}
    page = (folder / "report.html").read_text()
    assert "<h1>A &lt;founding&gt; experiment</h1>" in page
    assert all(job_id in page for job_id in state["jobs"].values())
    assert not re.findall(r"""(?:src|href)="(?!data:)""", page), "it loads nothing"
    drawn = list((folder / "report-figures").glob("*.png"))
    assert page.count("data:image/svg+xml;base64,") == len(drawn) == 5
    for name, samples in (("plain", 10), ("tools", 5)):
        states = list((folder / "results" / name / "agent_states").glob("*/*.safetensors"))
        assert len(states) == samples
    assert service.stop() == 0
