"""Labels of probe jobs from scores and files, baselines of captured hooks, and transfer to another job."""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.contract.resources import Score
from storage.sessions.writer import TensorRows
from tests.integration.api.conftest import Service
from tests.integration.api.test_analysis_jobs import HOOKS, ROWS, WIDTH, Analyst
from tests.integration.api.test_probe_jobs import submit, work_until
from tests.support.command_line import Run

pytestmark = pytest.mark.integration

PROBLEMS = 24
STRONG, EARLY = "mlp_in.2", "mlp_in.0"
QUICK: dict[str, Any] = {"kind": "probe", "hooks": [STRONG], "rows": "all", "resamples": 20, "shuffles": 1}


@pytest.fixture
def analyst(service: Service, tmp_path: Path) -> Analyst:
    service.load_model()
    return Analyst(service, tmp_path)


def record(analyst: Analyst, seed: int = 0, *, embed: bool = True) -> str:
    """A job in which feature 3 of one hook tells samples of even numbers; their score is 0.75, not 0.25."""
    points = ["mlp_in", *(["embed"] if embed else [])]
    job_id = analyst.service.submit(
        inputs=[{"prompt": f"problem {number}"} for number in range(PROBLEMS)],
        capture={"points": points, "layers": "all"},
    )
    names = [name for name in HOOKS if name.startswith("mlp_in")] + (["embed"] if embed else [])
    draw = np.random.default_rng(seed)
    for lease in analyst.service.claim(job_id, PROBLEMS):
        even = lease.sample_index % 2 == 0
        arrays = {name: draw.normal(size=(ROWS, WIDTH)).astype(np.float32) for name in names}
        arrays[STRONG][:, 3] += 6 * even
        rows = {
            name: TensorRows(name=name, dtype="F32", first_row=0, shape=(ROWS, WIDTH), data=a.tobytes())
            for name, a in arrays.items()
        }
        scores = {"acc,none": Score(value=0.75 if even else 0.25, answer=None)}
        analyst.service.finish(lease, tensors=rows, scores=scores)
    return job_id


def upload(analyst: Analyst, text: str, name: str = "labels.csv") -> dict[str, str]:
    answer = analyst.client.post("/v1/files", files={"file": (name, text.encode())})
    assert answer.status_code == 200, answer.text
    return {"file_id": answer.json()["id"]}


def sides() -> str:
    """Labels of all samples but the last two, one of which is empty."""
    lines = [f"{n},{'left' if n % 2 else 'right'}" for n in range(PROBLEMS - 2)]
    return "sample_index,side\n" + "\n".join([*lines, f"{PROBLEMS - 2},"]) + "\n"


def test_scores_are_split_and_captured_hooks_are_baselines(analyst: Analyst) -> None:
    found = submit(analyst, record(analyst), label="acc,none", above=0.5, **QUICK)["analysis"]
    assert (found["sessions"], found["not_captured"]) == (PROBLEMS, [])
    (hook,) = found["hooks"]
    one = found["hooks"][hook]
    assert (hook, one["classes"], one["auroc"]) == (STRONG, ["<= 0.5", "> 0.5"], 1.0)
    assert set(one["baselines"]) == {
        "majority", "length", "bag_of_words", "layer_0", "embedding", "shuffled_labels", "random_labels",
    }  # fmt: skip
    assert max(one["baselines"][name]["auroc"] for name in ("layer_0", "embedding")) < 0.9
    assert one["selectivity"] == one["accuracy"] - one["baselines"]["random_labels"]["accuracy"]


def test_a_baseline_that_was_not_captured_is_named(analyst: Analyst) -> None:
    source = record(analyst, embed=False)
    found = submit(analyst, source, label="acc,none", **QUICK | {"hooks": [EARLY]})["analysis"]
    assert found["not_captured"] == ["embedding"]
    assert not {"layer_0", "embedding"} & set(found["hooks"][EARLY]["baselines"])


def test_labels_of_a_file_are_those_of_its_samples(analyst: Analyst) -> None:
    source = record(analyst)
    found = submit(analyst, source, label="side", labels=upload(analyst, sides()), **QUICK)["analysis"]
    assert (found["sessions"], found["skipped"]) == (PROBLEMS - 2, 2)
    assert found["hooks"][STRONG]["classes"] == ["left", "right"]
    assert found["hooks"][STRONG]["auroc"] == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sample_index,other\n0,a\n", "side"),
        ("number,side\n0,a\n", "sample_index or sample_id"),
        ("sample_index,side\n0,a\n0,b\n", "row 1: another row"),
        ("sample_index,side\n0,\n", "no label in column 'side'"),
    ],
)
def test_a_file_without_usable_labels_is_refused(analyst: Analyst, text: str, message: str) -> None:
    body = {"jobs": [record(analyst)], "label": "side", "labels": upload(analyst, text), **QUICK}
    before = analyst.service.queue_state()
    answer = analyst.client.post("/v1/jobs", json=body)
    assert answer.status_code == 422, answer.text
    assert message in answer.json()["detail"]
    assert analyst.service.queue_state() == before


def test_a_missing_file_is_refused_and_one_in_use_is_kept(analyst: Analyst) -> None:
    body = {"jobs": [record(analyst)], "label": "side", **QUICK}
    missing = {"file_id": "file_" + "0" * 32}
    answer = analyst.client.post("/v1/jobs", json=body | {"labels": missing})
    assert answer.status_code == 422
    assert "no file" in answer.json()["detail"]
    used = upload(analyst, sides())
    assert analyst.client.post("/v1/jobs", json=body | {"labels": used}).status_code == 202
    assert analyst.client.delete(f"/v1/files/{used['file_id']}").status_code == 409
    analyst.work()
    assert analyst.client.delete(f"/v1/files/{used['file_id']}").status_code == 200


def test_probes_are_scored_on_another_job_beside_the_same_baselines(analyst: Analyst) -> None:
    first, second = record(analyst), record(analyst, seed=1)
    answer = submit(analyst, first, transfer=[second], label="acc,none", above=0.5, **QUICK)
    found = answer["analysis"]
    assert (found["sessions"], found["skipped"]) == (PROBLEMS, 0)
    moved = found["hooks"][STRONG]["transfer"][second]
    assert (moved["auroc"], moved["rows"], moved["groups"]) == (1.0, PROBLEMS, PROBLEMS)
    assert moved["shared_groups"] == PROBLEMS
    assert set(moved["baselines"]) == {"majority", "length", "bag_of_words", "layer_0", "embedding"}
    assert moved["baselines"]["majority"]["auroc"] == 0.5
    assert moved["baselines"]["layer_0"]["auroc"] < 0.9
    (table,) = [one for one in answer["files"] if one["filename"] == "probes.csv"]
    lines = analyst.client.get(f"/v1/files/{table['id']}/content").text.splitlines()
    assert lines[0].startswith("hook,scored_on,features,auroc")
    assert any(line.startswith(f"{STRONG},{second},probe,1.0") for line in lines)
    refused = {"kind": "probe", "jobs": [first], "transfer": [first]}
    assert analyst.client.post("/v1/jobs", json=refused).status_code == 422
    absent = {"kind": "probe", "jobs": [first], "points": ["mlp_in"], "transfer": ["job_" + "f" * 32]}
    problem = analyst.client.post("/v1/jobs", json=absent).json()
    assert (problem["status"], problem["errors"][0]["pointer"]) == (422, "/transfer/0")


def test_the_command_uploads_labels(analyst: Analyst, url: str, run: Run, tmp_path: Path) -> None:
    first, second = record(analyst), record(analyst, seed=1)
    file = tmp_path / "labels.csv"
    file.write_text(sides())
    beside = threading.Thread(target=lambda: work_until(analyst, 1), daemon=True)
    beside.start()
    flags = ("--resamples", "10", "--shuffles", "0", "--hook", STRONG, "--transfer", second)
    code, out, said = run("probe", first, "--labels", file, "--label", "side", *flags)
    assert code == 0, said
    found = json.loads(out)["hooks"][STRONG]
    assert found["classes"] == ["left", "right"]
    assert found["transfer"][second]["rows"] == PROBLEMS - 2
    beside.join(120)
    code, _, said = run("probe", tmp_path / "rows.npz", "--labels", file)
    assert code == 1
    assert "--labels works on jobs" in said
