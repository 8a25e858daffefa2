"""A model with planted outliers through the whole service: an experiment, the lens, outliers; with kills."""

import json
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from actograph.analysis.outlier_features import OutlierRule
from actograph.analysis.outliers import outliers_of_arrays
from actograph.client import Client
from actograph.client.transport import Transport
from actograph.contract.errors import InvalidRequest
from actograph.demo import MODEL_DIR, PROBLEMS
from actograph.experiment.experiment import read
from actograph.experiment.run import ExperimentRun, RunFolder

pytestmark = pytest.mark.e2e

FEATURE, PROMPTS = 17, ["The cat sat on the mat.", "Two and two are four.", "It rains in the north."]
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


def planted(folder: Path) -> Path:
    """The demo's model, in which one output of the second layer's MLP is much larger."""
    shutil.copytree(MODEL_DIR, folder)
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    weights[name] = weights[name].copy()
    weights[name][FEATURE] = 400
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted(tmp_path_factory.mktemp("planted") / "model")


@pytest.fixture(scope="module")
def service(module_up: Callable[..., Any], folder: Path) -> Any:
    started = module_up(model=f"demo={folder}")
    started.await_ready()
    return started


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
    service: Any, tmp_path: Path, die_after: Callable[[str, int], None]
) -> None:
    shutil.copy(PROBLEMS, tmp_path / "problems.jsonl")
    file, folder, said = tmp_path / "founding.yaml", tmp_path / "run", []
    file.write_text(TEXT)
    with Client(service.url) as client:

        def of_file() -> ExperimentRun:
            return ExperimentRun(
                client, read(file), RunFolder(folder), tmp_path, service="here", note=said.append
            )

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


def test_the_lens_reads_rows_as_the_model_reads_its_last_one(service: Any, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    automatic: Any = AutoModelForCausalLM
    model = automatic.from_pretrained(folder).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    with Client(service.url, "") as client:
        job = client.submit(
            {
                "kind": "capture",
                "model": "demo",
                "inputs": [{"prompt": prompt} for prompt in PROMPTS],
                "capture": {
                    "points": ["resid_pre", "resid_mid", "resid_post", "logits"],
                    "layers": "all",
                    "mode": "prefill",
                },
            }
        ).wait()
        found = client.analysis.lens(job, token="next", against=5, listed=1000)
        lens, contributions = found.frame(), found.frame("contributions")
        sessions = sorted(job.sessions(), key=lambda one: one.sample_index)
        last = model.config.num_hidden_layers - 1
        logits_of = {}
        with torch.no_grad():
            for session in sessions:
                ids = torch.tensor(session.token_ids)[None]
                logits_of[session.id] = model(ids).logits[0].double()
                for layer in range(last):
                    rows = torch.tensor(session[f"resid_post.{layer}"][:])
                    expected = model.lm_head(model.model.norm(rows)).double()
                    of = lens[(lens.session_id == session.id) & (lens.hook == f"resid_post.{layer}")]
                    best = of[of["rank"] == 1]
                    assert best.token.tolist() == expected.argmax(dim=1).tolist()
                    assert best.logit.tolist() == pytest.approx(expected.max(dim=1).values.tolist(), rel=1e-4)
                    assert best.text.tolist() == [tokenizer.decode([one]) for one in best.token]
        after = {session.id: [*session.token_ids[1:].tolist(), None] for session in sessions}
        hits = [
            int(row) == token
            for name, logits in logits_of.items()
            for row, token in zip(logits.argmax(dim=1), after[name], strict=True)
            if token is not None
        ]
        assert found.result.hooks[f"resid_post.{last}"]["next_is_top"] == pytest.approx(np.mean(hits))
        for (session_id, position), parts in contributions.groupby(["session_id", "position"]):
            row, token = logits_of[session_id][position], after[session_id][position]
            whole = float(row[token] - row[5])
            assert parts.contribution.sum() == pytest.approx(whole, rel=1e-4, abs=1e-3)
        assert [one["component"] for one in found.result.attribution][:3] == [
            "embed", "attn.0", "mlp.0",
        ]  # fmt: skip
        assert found.result.compared_rows > 0


def test_planted_outliers_are_found_and_a_killed_worker_comes_back(
    service: Any, wait: Callable[..., None]
) -> None:
    with Client(service.url, "") as client:
        job = client.submit(
            {
                "kind": "capture",
                "model": "demo",
                "inputs": [{"prompt": prompt} for prompt in PROMPTS],
                "capture": {"points": ["resid_post", "mlp_in"], "layers": "all", "mode": "prefill"},
            }
        ).wait()
        assert job.status == "completed"
        found = client.analysis.outliers(job, hooks=["resid_post"]).result
        mean = client.analysis.outliers(job, hooks=["resid_post"], position_reading="mean").result
        sessions = sorted(job.sessions(), key=lambda one: one.sample_index)
        arrays = {hook: np.concatenate([one[hook][:] for one in sessions]) for hook in found.hooks}
        expected = outliers_of_arrays(arrays)
        assert found.outlier_features == json.loads(json.dumps(expected["outlier_features"]))
        rule = OutlierRule(positions="mean")
        assert mean.outlier_features == outliers_of_arrays(arrays, rule)["outlier_features"]
        assert mean.outlier_features != found.outlier_features
        largest = max(found.outlier_features, key=lambda one: float(one["largest"]))
        assert largest["feature"] == FEATURE
        assert {1, 2} <= set(largest["layers"]), "from the second layer on"
        for hook, numbers in expected["arrays"].items():
            assert found.hooks[hook]["variance"] == pytest.approx(numbers["variance"], rel=1e-5)
        killed = service.child("worker.analysis")
        assert killed.memory_info().rss < 220 << 20, "with matplotlib"
        killed.send_signal(signal.SIGKILL)
        wait(lambda: not killed.is_running() or killed.status() == "zombie")
        again = client.analysis.outliers(job, hooks=["resid_post"])
        assert again.result.outlier_features == found.outlier_features
        assert client.jobs.get(job.id).status == "completed"
        worker = next(
            one
            for one in client.workers.list()
            if one.status in ("ready", "busy") and one.serves == ["=analysis"]
        )
        assert worker.pid != killed.pid
    assert service.stop() == 0
