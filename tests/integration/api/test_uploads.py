"""/v1/files: uploads of any size, downloads, and files that active jobs hold on to."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actograph.settings import Settings
from tests.integration.api.conftest import Problem, Service, Start

ROW = {"question": "q", "answer": "#### 1"}


def upload(service: Service, data: Any, name: str = "rows.jsonl", **form: Any) -> Any:
    return service.client.post("/v1/files", files={"file": (name, data)}, data=form)


def stored_files(settings: Settings) -> list[Path]:
    return [p for p in (settings.home / "artifacts" / "files").rglob("*") if p.is_file()]


def test_a_file_is_stored_listed_downloaded_and_deleted(
    service: Service, problem: Problem, settings: Settings
) -> None:
    data = bytes(range(256)) * 10
    file = upload(service, data).json()
    assert file["object"] == "file"
    assert (file["bytes"], file["filename"], file["purpose"]) == (2560, "rows.jsonl", "dataset")
    other = upload(service, b"x", purpose="batch").json()
    assert [f["id"] for f in service.client.get("/v1/files").json()["data"]] == [other["id"], file["id"]]
    listed = service.client.get("/v1/files", params={"purpose": "batch"}).json()
    assert [f["id"] for f in listed["data"]] == [other["id"]]
    page = service.client.get("/v1/files", params={"limit": 1}).json()
    assert page["has_more"]
    rest = service.client.get("/v1/files", params={"limit": 1, "after": page["last_id"]}).json()
    assert [f["id"] for f in rest["data"]] == [file["id"]]
    url = f"/v1/files/{file['id']}"
    assert service.client.get(url).json() == file
    assert service.client.get(f"{url}/content").content == data
    part = service.client.get(f"{url}/content", headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, data[10:20])
    assert len(stored_files(settings)) == 2
    assert service.client.delete(url).json() == {"id": file["id"], "object": "file", "deleted": True}
    service.drain()
    assert len(stored_files(settings)) == 1
    for answer in (service.client.delete(url), service.client.get(url), service.client.get(f"{url}/content")):
        problem(answer, 404, "not_found")


def test_a_file_beyond_the_limit_is_refused_and_leaves_nothing(
    start: Start, settings: Settings, problem: Problem
) -> None:
    limited = settings.model_copy(update={"max_upload_bytes": 1000})
    service = start(limited)
    assert upload(service, b"x" * 1000).status_code == 200
    # within what the form may add, so that only the count of the file itself tells
    problem(upload(service, b"x" * 1001), 413, "payload_too_large", says="ACTOGRAPH_MAX_UPLOAD_BYTES")
    problem(upload(service, b"x" * 2_000_000), 413, "payload_too_large", says="ACTOGRAPH_MAX_UPLOAD_BYTES")

    def chunks() -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
        for _ in range(30):
            yield b"x" * 100_000
        yield b"\r\n--b--\r\n"

    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    problem(service.client.post("/v1/files", content=chunks(), headers=headers), 413, "payload_too_large")
    assert len(service.client.get("/v1/files").json()["data"]) == 1
    assert len(stored_files(limited)) == 1


def test_a_file_that_an_active_job_reads_stays(service: Service, problem: Problem) -> None:
    tested, examples = service.upload(ROW, ROW), service.upload(ROW, ROW)
    spec = {
        "kind": "evaluation", "model": "demo", "dataset": {"file_id": tested},
        "fewshot_dataset": {"file_id": examples}, "num_fewshot": 1,
    }  # fmt: skip
    job_id = service.client.post("/v1/jobs", json=spec).json()["id"]
    for file_id in (tested, examples):
        problem(service.client.delete(f"/v1/files/{file_id}"), 409, "conflict", says=job_id)
        assert service.client.get(f"/v1/files/{file_id}/content").status_code == 200
    service.client.post(f"/v1/jobs/{job_id}/cancel")
    for file_id in (tested, examples):
        assert service.client.delete(f"/v1/files/{file_id}").status_code == 200


def test_an_upload_that_fails_after_its_bytes_leaves_nothing(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the index is gone")

    with monkeypatch.context() as patched:
        patched.setattr("storage.files.files.publish", fail)
        assert upload(service, b"x" * 1000).status_code == 500
    assert len(stored_files(settings)) == 1
    usage = service.client.get("/v1/activations/stats").json()
    assert (usage["files"], usage["deleting"], usage["bytes"] >= 1000) == (0, 1, True)
    service.drain()
    assert stored_files(settings) == []
    assert upload(service, b"x" * 1000).status_code == 200
    service.drain()
    assert len(stored_files(settings)) == 1
