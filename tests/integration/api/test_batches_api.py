"""Batches on both indexes: every end, two processes at once, one that ends, repeated requests, owners."""

import json
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from actograph.contract.errors import ServiceUnavailable
from actograph.settings import Settings
from api.openai import batch_output
from api.openai.batches import advance
from storage.jobs import batches
from storage.tables.models import BatchRow
from tests.integration.api.conftest import Keyed, Problem, Service, Start
from tests.support.samples import age_removals

CHAT = "/v1/chat/completions"

Eventually = Callable[[Callable[[], bool]], None]


def line(name: str, **body: Any) -> dict[str, Any]:
    asked = {"model": "demo", "messages": [{"role": "user", "content": f"Say {name}"}], "max_tokens": 8}
    return {"custom_id": name, "method": "POST", "url": CHAT, "body": asked | body}


def upload(service: Service, *lines: dict[str, Any], headers: dict[str, str] | None = None) -> str:
    body = "\n".join(json.dumps(one) for one in lines).encode()
    return service.upload_bytes("in.jsonl", body, data={"purpose": "batch"}, headers=headers)


def wanted(file_id: str, **changes: Any) -> dict[str, Any]:
    return {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"} | changes


def create(
    service: Service, *lines: dict[str, Any], headers: dict[str, str] | None = None, **changes: Any
) -> str:
    """The id of a batch whose file has been read."""
    body = wanted(upload(service, *lines, headers=headers), **changes)
    answer = service.client.post("/v1/batches", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    batch_id = str(answer.json()["id"])
    advance(service.services, batch_id)
    return batch_id


def show(service: Service, batch_id: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    answer = service.client.get(f"/v1/batches/{batch_id}", headers=headers)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def content(service: Service, file_id: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """custom_id -> line"""
    text = service.client.get(f"/v1/files/{file_id}/content", headers=headers).text
    found = [json.loads(one) for one in text.splitlines()]
    assert len({one["custom_id"] for one in found}) == len(found)
    return {one["custom_id"]: one for one in found}


def run(service: Service, batch_id: str, count: int) -> None:
    """The next so many samples, as a worker runs them."""
    job_id = show(service, batch_id, None)["job_id"]
    for lease in service.claim(job_id, count):
        service.finish(lease)


def stored_files(service: Service) -> set[str]:
    return {entry.prefix for entry in service.services.store.list_prefixes("files")}


END = {"completed": 3, "cancelled": 2, "expired": 2, "failed": 0}


def test_every_end_keeps_what_finished(
    service: Service, eventually: Eventually, subtests: pytest.Subtests
) -> None:
    service.load_model()
    for end in END:
        with subtests.test(end):
            check_end(service, end, eventually)


def check_end(service: Service, end: str, eventually: Eventually) -> None:
    lines = [line("a"), line("b", n=2), line("c") if end != "failed" else line("a")]
    changes: dict[str, Any] = {"output_expires_after": {"anchor": "created_at", "seconds": 7200}}
    if end == "expired":
        changes["completion_window"] = "1s"
    batch_id = create(service, *lines, **changes)
    if end != "failed":
        assert show(service, batch_id)["request_counts"] == {"total": 3, "completed": 0, "failed": 0}
        run(service, batch_id, 4 if end == "completed" else 3)
    if end == "cancelled":
        answer = service.client.post(f"/v1/batches/{batch_id}/cancel").json()
        assert answer["status"] in ("cancelling", "cancelled")

    def has_ended() -> bool:
        service.reconcile()
        return show(service, batch_id)["status"] == end

    eventually(has_ended)
    batch = show(service, batch_id)
    done = END[end]
    total = 0 if end == "failed" else 3
    assert batch["request_counts"] == {"total": total, "completed": done, "failed": total - done}
    assert batch[f"{end}_at"] >= batch["created_at"]
    answers = content(service, batch["output_file_id"]) if batch["output_file_id"] else {}
    errors = content(service, batch["error_file_id"]) if batch["error_file_id"] else {}
    assert list(answers) == ["a", "b", "c"][:done]
    for file_id in filter(None, (batch["output_file_id"], batch["error_file_id"])):
        file = service.client.get(f"/v1/files/{file_id}").json()
        assert file["expires_at"] in range(file["created_at"] + 7199, file["created_at"] + 7202)
    assert list(errors) == ["a", "b", "c"][done:total]
    assert {one["error"]["code"] for one in errors.values()} <= {f"batch_{end}"}
    if end == "failed":
        (error,) = batch["errors"]["data"]
        assert (error["line"], error["code"], error["param"]) == (3, "duplicate_custom_id", "custom_id")
    else:
        assert len(answers["b"]["response"]["body"]["choices"]) == 2
        assert batch["usage"]["output_tokens"] == 4 * (done + 1)


def test_two_processes_make_one_job_and_one_set_of_files(start: Start, settings: Settings) -> None:
    first = start(settings)
    first.load_model()
    second = start(settings)
    batch_id = create(first, line("a"), line("b"))
    advance(second.services, batch_id)
    assert first.queue_state()[:2] == (1, 2)
    run(first, batch_id, 2)
    advance(first.services, batch_id)
    before = stored_files(first)
    advance(second.services, batch_id)
    assert stored_files(first) == before
    assert len(before) == 2
    assert len(first.client.get("/v1/files").json()["data"]) == 2
    assert list(content(second, show(second, batch_id)["output_file_id"])) == ["a", "b"]


def test_files_that_a_killed_process_left_are_written_again(
    start: Start, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = start(settings)
    service.load_model()
    batch_id = create(service, line("a"), line("b"))
    run(service, batch_id, 2)
    move = batches.move

    class Killed(BaseException):
        pass

    def die(session: Any, row: BatchRow, status: Any, **values: Any) -> Any:
        if status == "completed":
            raise Killed
        return move(session, row, status, **values)

    monkeypatch.setattr(batches, "move", die)
    with pytest.raises(Killed):
        advance(service.services, batch_id)
    assert show(service, batch_id)["status"] == "finalizing"
    assert len(stored_files(service)) == 2
    monkeypatch.undo()
    advance(service.services, batch_id)
    batch = show(service, batch_id)
    assert list(content(service, batch["output_file_id"])) == ["a", "b"]
    age_removals(service.database)
    service.drain()
    assert len(stored_files(service)) == 2


def test_a_batch_waits_for_a_service_and_fails_after_any_other_error(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.load_model()
    batch_id = create(service, line("a"))
    run(service, batch_id, 1)
    for error, status in ((ServiceUnavailable("no store"), "finalizing"), (KeyError("x"), "failed")):
        monkeypatch.setattr(batch_output, "write", Mock(side_effect=error))
        advance(service.services, batch_id)
        batch = show(service, batch_id)
        assert batch["status"] == status
    assert batch["errors"]["data"][0]["code"] == "internal_error"


def test_a_repeated_request_makes_one_batch(service: Service, problem: Problem) -> None:
    body, headers = wanted(upload(service, line("a"))), {"Idempotency-Key": "once"}
    first = service.client.post("/v1/batches", json=body, headers=headers)
    again = service.client.post("/v1/batches", json=body, headers=headers)
    assert first.json()["id"] == again.json()["id"]
    assert len(service.client.get("/v1/batches").json()["data"]) == 1
    other = body | {"metadata": {"a": "b"}}
    problem(service.client.post("/v1/batches", json=other, headers=headers), 422, "idempotency_mismatch")


def test_a_batch_and_its_files_are_their_owners(keyed: Keyed, problem: Problem) -> None:
    keyed.load_model()
    alice, bob = (keyed.headers(keyed.make_key("submit", owner=name)) for name in ("alice", "bob"))
    batch_id = create(keyed, line("a"), line("b"), headers=alice)
    job_id = show(keyed, batch_id, alice)["job_id"]
    (lease,) = keyed.claim(job_id)
    keyed.finish(lease)
    answer = keyed.client.post(f"/v1/batches/{batch_id}/cancel", headers=alice)
    assert answer.status_code == 200, answer.text
    advance(keyed.services, batch_id)
    batch = show(keyed, batch_id, alice)
    assert batch["status"] == "cancelled"
    names = [batch[name] for name in ("input_file_id", "output_file_id", "error_file_id")]
    for file_id in names:
        assert keyed.client.get(f"/v1/files/{file_id}/content", headers=alice).status_code == 200
        problem(keyed.client.get(f"/v1/files/{file_id}/content", headers=bob), 404)
    assert keyed.client.get("/v1/batches", headers=bob).json()["data"] == []
    assert keyed.client.get("/v1/files", headers=bob).json()["data"] == []
    # all three count
    sizes = sum(keyed.client.get(f"/v1/files/{name}", headers=alice).json()["bytes"] for name in names)
    usage = keyed.client.get("/v1/activations/stats", headers=alice).json()
    assert (usage["files"], usage["file_bytes"]) == (3, sizes)
