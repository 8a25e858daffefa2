"""A flipped byte in the store is never served: not in a file, a range, a slice or a manifest."""

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from api.openai.batches import advance_all
from storage.index import counters, events
from storage.index.counters import Counter
from storage.sessions.writer import TensorRows
from tests.support.stored_files import stored_path

if TYPE_CHECKING:
    from tests.integration.api.conftest import Problem, Service

pytestmark = pytest.mark.integration

BASE = "/v1/activations/sessions"
NAME = "activations.safetensors"
ROWS, WIDTH = 6, 200_000
VALUES = np.arange(ROWS * WIDTH, dtype="<f4").reshape(ROWS, WIDTH)


@pytest.fixture
def session_id(service: "Service") -> str:
    """A session of 4.8 MB, in which the last rows lie behind many chunks."""
    rows = TensorRows("resid_post.1", "F32", (ROWS, WIDTH), 0, VALUES)
    made = service.finish(*service.claim(service.submit()), tensors={"resid_post.1": rows})
    assert made is not None
    return made


def path_of(service: "Service", session_id: str, name: str = NAME) -> Path:
    path = stored_path(service.services.store, f"sessions/{session_id}/{name}")
    return path


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def recorded(service: "Service", session_id: str) -> tuple[float, list[dict[str, str]]]:
    """Damaged reads that were counted, and the damage events of the session's job."""
    job_id = service.client.get(f"{BASE}/{session_id}").json()["job_id"]
    with service.database.read() as session:
        count = counters.totals(session).get(Counter("damaged_reads"), 0)
        log = events.after(session, job_id, 0)
    return count, [event.data for event in log if event.event == "session.damaged"]


def test_a_file_that_was_cut_off_is_not_served(
    service: "Service", session_id: str, problem: "Problem"
) -> None:
    path = path_of(service, session_id)
    path.write_bytes(path.read_bytes()[:-300])
    for tail in (f"files/{NAME}", "tensors/resid_post.1?rows=5:6"):
        body = problem(
            service.client.get(f"{BASE}/{session_id}/{tail}"), 500, "store_damaged", says=session_id
        )
        assert NAME in body["detail"]
    count, log = recorded(service, session_id)
    assert count == 2
    assert [(entry["session_id"], entry["file"]) for entry in log] == [(session_id, NAME)], "told once"
    assert "actograph_damaged_reads_total 2.0" in service.client.get("/metrics").text
    assert service.client.get(f"{BASE}/{session_id}/tensors/resid_post.1?rows=1:2").status_code == 200


def test_a_changed_manifest_is_not_served(service: "Service", session_id: str, problem: "Problem") -> None:
    path = path_of(service, session_id, "manifest.json")
    text = path.read_text()
    path.write_text(text.replace('"seed": ', '"seed":1', 1))
    assert len(path.read_text()) == len(text)
    for tail in ("manifest", "tensors/resid_post.1?rows=0:1"):
        answer = service.client.get(f"{BASE}/{session_id}/{tail}")
        problem(answer, 500, "store_damaged", says=session_id)
    assert recorded(service, session_id)[0] == 2


def upload(service: "Service", name: str, content: bytes, purpose: str = "dataset") -> str:
    answer = service.client.post("/v1/files", files={"file": (name, content)}, data={"purpose": purpose})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def tampered(service: "Service", file_id: str, at: int) -> None:
    path = stored_path(service.services.store, f"files/{file_id}")
    flip(path, at)


@pytest.mark.covering(2)
@pytest.mark.parametrize("copies", [1, 40_000])
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.parquet"])
def test_a_job_on_a_tampered_upload_is_refused(
    service: "Service", problem: "Problem", name: str, copies: int
) -> None:
    """The byte that changes lies in the first row: 2 + 2 becomes 3 + 2 and the file is still readable."""
    row = {"question": "What is 2 + 2?", "answer": "It is 4. #### 4"}
    content = (json.dumps(row) + "\n").encode() * copies
    if name.endswith("csv"):
        content = b"question,answer\n" + b"What is 2 + 2?,It is 4. #### 4\n" * copies
    if name.endswith("parquet"):
        file = io.BytesIO()
        parquet.write_table(pyarrow.Table.from_pylist([row] * copies), file, compression="none")
        content = file.getvalue()
    file_id = upload(service, name, content)
    spec = {"kind": "evaluation", "model": "demo", "dataset": {"file_id": file_id}, "limit": 1}
    assert service.client.post("/v1/estimate", json=spec).status_code == 200
    tampered(service, file_id, content.index(b"2 + 2"))
    for route in ("/v1/jobs", "/v1/estimate"):
        problem(service.client.post(route, json=spec), 500, "store_damaged", says=file_id)
    assert service.queue_state() == (0, 0, [])
    assert "actograph_damaged_reads_total 2.0" in service.client.get("/metrics").text


def test_a_tampered_task_file_and_batch_are_refused(service: "Service", problem: "Problem") -> None:
    rows = service.upload({"question": "q", "answer": "#### 1"})
    task = upload(service, "task.yaml", b'{"name": "t", "prompt": "{{question}}", "target": "{{answer}}"}')
    tampered(service, task, 11)
    spec = {"kind": "evaluation", "model": "demo", "dataset": {"file_id": rows}, "task": {"file_id": task}}
    problem(service.client.post("/v1/jobs", json=spec), 500, "store_damaged", says=task)
    line = {
        "custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
        "body": {"model": "demo", "messages": [{"role": "user", "content": "hello"}]},
    }  # fmt: skip
    file_id = upload(service, "batch.jsonl", json.dumps(line).encode(), purpose="batch")
    tampered(service, file_id, json.dumps(line).index("hello"))
    request = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = service.client.post("/v1/batches", json=request).json()
    advance_all(service.services)
    failed = service.client.get(f"/v1/batches/{batch['id']}").json()
    assert failed["status"] == "failed"
    assert failed["errors"]["data"][0]["code"] == "store_damaged"
    assert file_id in failed["errors"]["data"][0]["message"]
