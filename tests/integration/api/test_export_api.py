"""The results folder over HTTP, and fetched by the client and the commands."""

import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actograph.client import Client, ServiceUnreachable
from actograph.client.stored_session import open_folder
from actograph.contract.errors import CaptureFailed
from actograph.contract.resources import Score
from storage.artifacts.store import ArtifactStore
from storage.sessions.writer import TensorRows
from tests.integration.api.conftest import Service
from tests.support import leasing
from tests.support.command_line import Run
from tests.support.stored_files import stored_path

KEY = "exact_match,strict-match"
HOOKS = ("attn_in.1", "resid_post.2")
WIDTH = 64
ROWS = [
    {"question": "2 + 3?", "answer": "#### 5"},
    {"question": "2 × 4?", "answer": "#### 8"},
    {"question": "9 - 1?", "answer": "#### 8"},
]
CONDITIONS = [{"name": "baseline"}, {"name": "ep02", "suffix": "Please."}]

Values = dict[str, NDArray[np.float32]]


def evaluation(service: Service, **changes: Any) -> str:
    """The id of an evaluation of three problems under two conditions."""
    service.load_model()
    body: dict[str, Any] = {
        "kind": "evaluation",
        "model": "demo",
        "dataset": {"file_id": service.upload(*ROWS)},
        "conditions": CONDITIONS,
        "capture": {"hooks": list(HOOKS)},
        "tags": ["night"],
    }
    answer = service.client.post("/v1/jobs", json=body | changes)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def finish(service: Service, job_id: str, count: int) -> Values:
    """Complete the next samples as a worker would; the float32 rows of each session."""
    stored: Values = {}
    generator = np.random.default_rng(0)
    for lease in service.claim(job_id, count):
        rows = generator.normal(size=(6, WIDTH)).astype("<f4")
        rows[0, 3] = np.nan
        rows[1, 4] = np.inf
        halves = (rows[3:].view("<u4") >> 16).astype("<u2")
        tensors = {
            HOOKS[0]: TensorRows(HOOKS[0], "F32", (6, WIDTH), 0, rows),
            HOOKS[1]: TensorRows(HOOKS[1], "BF16", (3, WIDTH), 3, halves),
        }
        right = lease.sample_index == 0
        scores = {KEY: Score(value=float(right), answer="5" if right else None)}
        session_id = service.finish(lease, tensors=tensors, scores=scores, correct=right)
        assert session_id is not None
        stored[session_id] = rows
    return stored


def unpacked(data: bytes, job_id: str) -> dict[str, bytes]:
    """Name within the folder -> bytes."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        found = {}
        for member in tar:
            assert member.isfile()
            top, _, name = member.name.partition("/")
            assert top == job_id
            stream = tar.extractfile(member)
            assert stream is not None
            found[name] = stream.read()
    return found


def export(service: Service, job_id: str, **params: Any) -> dict[str, bytes]:
    answer = service.client.get(f"/v1/jobs/{job_id}/export", params=params)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/gzip"
    return unpacked(answer.content, job_id)


def names(folder: dict[str, bytes], part: str) -> list[str]:
    return [name for name in folder if name.startswith(f"{part}/")]


def test_the_folder_of_an_evaluation(service: Service) -> None:
    job_id = evaluation(service)
    stored = finish(service, job_id, 6)
    found = export(service, job_id)
    expected = [f"gsm8k_{n:04d}__{name}" for n in (1, 2, 3) for name in ("baseline", "ep02")]
    assert names(found, "samples") == [f"samples/{name}.json" for name in expected]
    assert names(found, "trajectories") == [f"trajectories/{name}.jsonl" for name in expected]
    assert names(found, "agent_states") == [f"agent_states/{name}.json" for name in expected]
    assert list(found)[-1] == "summary.json"

    sample = json.loads(found["samples/gsm8k_0002__ep02.json"])
    assert (sample["sample_index"], sample["condition"], sample["epoch"]) == (1, "ep02", 0)
    assert (sample["problem"], sample["gold"]) == ("2 × 4?", "#### 8")
    assert (sample["prompt"], sample["completion"]) == ("a prompt", "a completion")
    assert sample["scores"] == {KEY: {"value": 0.0, "answer": None}}
    assert sample["activations"] == {
        "layer_1_input_layernorm_output": {
            "hook": "attn_in.1",
            "bytes": 6 * WIDTH * 4,
            "shape": [6, WIDTH],
            "dtype": "F32",
            "first_row": 0,
        },
        "layer_2_output": {
            "hook": "resid_post.2",
            "bytes": 3 * WIDTH * 2,
            "shape": [3, WIDTH],
            "dtype": "BF16",
            "first_row": 3,
        },
    }
    lines = [json.loads(line) for line in found["dataset.jsonl"].splitlines()]
    assert [line["name"] for line in lines] == expected
    assert {line["session_id"] for line in lines} == set(stored)
    assert lines[0]["gold"] == "#### 5"
    assert lines[0]["generated_tokens"] == 4

    turns = [json.loads(line) for line in found["trajectories/gsm8k_0001__ep02.jsonl"].splitlines()]
    assert [(turn["role"], turn["content"], turn["tokens"]) for turn in turns] == [
        ("prompt", "a prompt", 3),
        ("assistant", "a completion", 4),
    ]
    state = json.loads(found["agent_states/gsm8k_0001__ep02.json"])
    assert state["session_id"] in stored
    assert {file["name"] for file in state["files"]} == {"manifest.json", "activations.safetensors"}

    summary = json.loads(found["summary.json"])
    results = service.client.get(f"/v1/jobs/{job_id}/results").json()
    assert summary["conditions"] == results["conditions"]
    assert (summary["complete"], summary["status"]) == (True, "completed")
    assert (summary["model"], summary["task"], summary["tags"]) == ("demo", "gsm8k", ["night"])
    counts = summary["counts"]
    assert (counts["exported"], counts["completed"], counts["failed"], counts["sessions"]) == (6, 6, 0, 6)
    assert counts["generated_tokens"] == 24
    comparison = json.loads(found["comparison.json"])
    assert comparison == service.client.get(f"/v1/jobs/{job_id}/comparison").json()


def test_a_running_job_gives_what_has_ended_and_says_so(service: Service) -> None:
    job_id = evaluation(service, conditions=CONDITIONS[:1], epochs=2)
    finish(service, job_id, 3)
    with service.database.write() as session:
        (lease,) = leasing.claim(session, job_id, worker_id="wrk_test", count=1)
        leasing.fail(session, lease, CaptureFailed("rows are missing"))
    found = export(service, job_id)
    summary = json.loads(found["summary.json"])
    assert (summary["complete"], summary["status"]) == (False, "in_progress")
    assert (summary["counts"]["total"], summary["counts"]["exported"], summary["counts"]["failed"]) == (
        6,
        4,
        1,
    )
    assert [Path(name).stem for name in names(found, "samples")] == [
        "gsm8k_0001__epoch_1", "gsm8k_0001__epoch_2", "gsm8k_0002__epoch_1", "gsm8k_0002__epoch_2",
    ]  # fmt: skip
    failed = json.loads(found["samples/gsm8k_0002__epoch_2.json"])
    assert (failed["status"], failed["error"]["message"]) == ("failed", "rows are missing")
    assert failed["activations"] == {}
    assert found["trajectories/gsm8k_0002__epoch_2.jsonl"] == b""


def test_a_damaged_session_is_named_and_the_rest_is_there(service: Service) -> None:
    job_id = evaluation(service, conditions=CONDITIONS[:1])
    damaged = next(iter(finish(service, job_id, 3)))
    path = stored_path(service.services.store, f"sessions/{damaged}/activations.safetensors")
    path.write_bytes(path.read_bytes()[:100])
    found = export(service, job_id, activations="sampled")
    assert list(json.loads(found["summary.json"])["unreadable_sessions"]) == [damaged]
    sample = json.loads(found["samples/gsm8k_0001.json"])
    assert sample["activations"] == {}
    assert sample["activations_error"]["type"] == "store_damaged"
    assert json.loads(found["samples/gsm8k_0002.json"])["activations"]["layer_2_output"]["data"]


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def untimed(name: str) -> str:
    """The name without the time that lm-eval puts into it."""
    return re.sub(r"_\d{4}-\d\d-\d\dT[\d.-]+(?=\.jsonl?$)", "", name)


def test_the_command_brings_the_folder_with_every_session(service: Service, run: Run, tmp_path: Path) -> None:
    job_id = evaluation(service)
    stored = finish(service, job_id, 4)
    out = tmp_path / "results"
    code, said, noted = run("jobs", "export", job_id[:12], "--out", out)
    assert (code, said) == (0, f"{out}\n")
    assert "samples 4/4" in noted
    assert "the job has not ended: 4 samples so far" in noted
    # lm-eval's files are named after the second in which a job that goes on is exported
    assert {untimed(name) for name in files_of(out)} == {untimed(name) for name in export(service, job_id)}

    stored |= finish(service, job_id, 2)
    code, said, noted = run("jobs", "export", job_id, "--out", out, "--activations", "all")
    assert (code, said) == (0, f"{out}\n"), noted
    assert "sessions 6/6" in noted
    folders = sorted(path for path in (out / "agent_states").iterdir() if path.is_dir())
    assert [path.name for path in folders][:2] == ["gsm8k_0001__baseline", "gsm8k_0001__ep02"]
    for folder in folders:
        session_id = json.loads((out / "agent_states" / f"{folder.name}.json").read_text())["session_id"]
        np.testing.assert_array_equal(open_folder(folder)[HOOKS[0]][:], stored[session_id])
    assert json.loads((out / "summary.json").read_text())["complete"] is True
    assert not list(out.glob(".*"))

    other = evaluation(service)
    code, _, noted = run("jobs", "export", other, "--out", out)
    assert code == 1
    assert "contains results of another job" in noted
    code, _, noted = run("jobs", "export", other, "--out", tmp_path)
    assert code == 1
    assert "contains other files" in noted


def test_a_pull_that_broke_off_leaves_no_summary_and_is_repeated(
    service: Service, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = evaluation(service)
    finish(service, job_id, 6)
    away = True

    class Away(Exception):
        pass

    def reading(self: ArtifactStore, key: str, start: int, length: int) -> bytes:
        if away and key.endswith(".safetensors"):
            raise Away
        return read(self, key, start, length)

    store = type(service.services.store)
    read = store.read
    monkeypatch.setattr(store, "read", reading)
    out = tmp_path / "out"
    with Client(url, "", retries=0) as client:
        with pytest.raises(ServiceUnreachable):
            client.jobs.get(job_id).export(out, activations="sampled")
        assert not (out / "summary.json").exists()
        away = False
        pulled = client.jobs.get(job_id).export(out, activations="sampled")
    assert (pulled.samples, pulled.complete) == (6, True)
    assert {untimed(name) for name in files_of(out)} == {
        untimed(name) for name in export(service, job_id, activations="sampled")
    }
