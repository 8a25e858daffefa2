"""Quotas on what is stored: refusals with numbers, visible pauses that end by themselves, usage by owner."""

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import redis

from actograph.settings import Settings
from storage.sessions.writer import TensorRows

if TYPE_CHECKING:
    from tests.integration.api.conftest import Problem, Service, Start

pytestmark = pytest.mark.integration

USAGE = "/v1/activations/stats"
KEYS = ("first-key", "second-key")


def headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def submit(service: "Service", key: str | None = None, **changes: Any) -> Any:
    body = {"kind": "capture", "model": "demo", "inputs": [{"prompt": "Hello"}]} | changes
    return service.client.post("/v1/jobs", json=body, headers=headers(key) if key else {})


def finish(service: "Service", job_id: str, count: int = 1) -> list[str]:
    rows = {"embed": TensorRows("embed", "F32", (6, 8), 0, bytes(6 * 8 * 4))}
    made = [service.finish(lease, tensors=rows) for lease in service.claim(job_id, count)]
    return [session_id for session_id in made if session_id is not None]


def test_usage_adds_up_by_owner(start: "Start", settings: Settings) -> None:
    service = start(settings.model_copy(update={"api_keys": KEYS}))
    for key in KEYS:
        finish(service, submit(service, key).json()["id"])
    finish(service, submit(service, KEYS[0]).json()["id"])
    service.client.post("/v1/files", files={"file": ("a", b"12345")}, headers=headers(KEYS[1]))
    shown = service.client.get(USAGE, headers=headers(KEYS[0])).json()
    (most, least) = shown["owners"]
    assert (most["sessions"], least["sessions"], least["files"], least["file_bytes"]) == (2, 1, 1, 5)
    assert most["owner"] != least["owner"]
    assert all(one["owner"].startswith("key:") for one in shown["owners"])
    assert not any(key in str(shown) for key in KEYS)
    assert shown["bytes"] == sum(o["session_bytes"] + o["file_bytes"] for o in shown["owners"])
    assert (shown["quota_bytes"], shown["available_bytes"]) == (None, None)
    found = service.client.get(
        "/v1/activations/sessions", params={"owner": most["owner"]}, headers=headers(KEYS[0])
    ).json()
    assert [session["owner"] for session in found["data"]] == [most["owner"]] * 2


def test_a_job_that_cannot_fit_is_refused_with_both_numbers(
    start: "Start", settings: Settings, problem: "Problem"
) -> None:
    service = start(settings.model_copy(update={"store_quota_bytes": 10_000}))
    service.load_model()
    body: dict[str, Any] = {"capture": {"layers": "all"}, "sampling": {"max_tokens": 500}}
    found = problem(submit(service, **body), 422, "quota_exceeded", "/capture", says="available 10,000")
    assert "needed" in found["detail"]
    shown = service.client.post(
        "/v1/estimate", json={"kind": "capture", "model": "demo", "inputs": [{"prompt": "a"}], **body}
    ).json()
    assert (shown["disk"]["available"], shown["disk"]["fits"]) == (10_000, False)
    assert submit(service, capture={"layers": [0]}, sampling={"max_tokens": 4}).status_code == 202
    answer = service.client.post("/v1/files", files={"file": ("a", bytes(10_001))})
    problem(answer, 422, "quota_exceeded", says="available 10,000")


def test_the_queue_pauses_at_the_quota_of_all_and_goes_on_once_there_is_room(
    start: "Start", settings: Settings
) -> None:
    service = start(settings.model_copy(update={"store_quota_bytes": 1000}))
    job_id = submit(service, inputs=[{"prompt": "a"}, {"prompt": "b"}]).json()["id"]
    (session_id,) = finish(service, job_id)
    forget_messages(service)
    assert service.next_job() is None
    queue = service.client.get("/v1/queue").json()
    assert (queue["paused"], [pause["kind"] for pause in queue["pauses"]]) == (True, ["quota"])
    assert "ACTOGRAPH_STORE_QUOTA_BYTES" in queue["paused_reason"]
    assert "1,000" in service.client.get(f"/v1/jobs/{job_id}").json()["paused_reason"]
    service.client.delete(f"/v1/activations/sessions/{session_id}")
    usage = service.client.get(USAGE).json()
    assert (usage["sessions"], usage["deleting"], usage["bytes"]) == (0, 1, usage["deleting_bytes"])
    assert service.client.get("/v1/queue").json()["paused"] is True  # its bytes are still stored
    service.drain()
    assert service.next_job() == job_id
    assert service.client.get("/v1/queue").json()["paused"] is False
    assert service.client.get(f"/v1/jobs/{job_id}").json()["paused_reason"] is None


def test_one_owner_at_the_quota_holds_up_nobody_else(start: "Start", settings: Settings) -> None:
    service = start(settings.model_copy(update={"owner_quota_bytes": 1000, "api_keys": KEYS}))
    full = submit(service, KEYS[0], inputs=[{"prompt": "a"}, {"prompt": "b"}]).json()["id"]
    (session_id,) = finish(service, full)
    other = submit(service, KEYS[1]).json()["id"]
    forget_messages(service)
    assert service.next_job() == other
    me = headers(KEYS[1])
    assert service.client.get("/v1/queue", headers=me).json()["paused"] is False
    listed = service.client.get("/v1/jobs", headers=me).json()["data"]
    assert {job["id"]: job["paused_reason"] is None for job in listed} == {full: False, other: True}
    assert "ACTOGRAPH_OWNER_QUOTA_BYTES" in next(j["paused_reason"] for j in listed if j["id"] == full)
    shown = service.client.get(USAGE, headers=me).json()
    assert shown["owners"][0]["available_bytes"] == 0
    service.client.delete(f"/v1/activations/sessions/{session_id}", headers=me)
    service.drain()
    assert service.next_job() == full


@pytest.mark.parametrize("nearer", ["store", "owner"])
def test_with_both_limits_the_nearer_one_refuses_and_pauses(
    start: "Start", settings: Settings, problem: "Problem", nearer: str
) -> None:
    limits = {"store_quota_bytes": 2000, "owner_quota_bytes": 900}
    if nearer == "store":
        limits = {"store_quota_bytes": 1000, "owner_quota_bytes": 1900}
    service = start(settings.model_copy(update={"api_keys": KEYS} | limits))
    me, other = headers(KEYS[0]), headers(KEYS[1])
    assert service.client.post("/v1/files", files={"file": ("a", bytes(400))}, headers=me).status_code == 200
    left = {"store": (600, 600), "owner": (500, 900)}[nearer]
    for mine, room in zip((me, other), left, strict=True):
        answer = service.client.post("/v1/files", files={"file": ("b", bytes(room + 1))}, headers=mine)
        problem(answer, 422, "quota_exceeded", says=f"available {room}")
    assert (
        service.client.post("/v1/files", files={"file": ("b", bytes(left[0]))}, headers=me).status_code == 200
    )
    first, second = (submit(service, key).json()["id"] for key in KEYS)
    forget_messages(service)
    assert service.next_job() == (None if nearer == "store" else second)
    assert service.client.get("/v1/queue", headers=other).json()["paused"] is (nearer == "store")
    reason = service.client.get(f"/v1/jobs/{first}", headers=me).json()["paused_reason"]
    assert ("ACTOGRAPH_STORE_QUOTA_BYTES" in reason) is (nearer == "store")
    assert ("ACTOGRAPH_OWNER_QUOTA_BYTES" in reason) is (nearer == "owner")


class DiskUsage(NamedTuple):
    """Bytes of a disk, as `shutil.disk_usage` returns them."""

    total: int
    used: int
    free: int


def forget_messages(service: "Service") -> None:
    with redis.Redis.from_url(service.services.settings.broker_url) as client:
        client.flushdb()


def test_owners_with_a_key_have_a_share_of_the_disk_by_default(
    start: "Start", settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One owner cannot fill the disk for the others; a service without keys has no such limit."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: DiskUsage(4000, 3500, 500))
    keyed = start(settings.model_copy(update={"api_keys": KEYS, "disk_floor_bytes": 0}))
    headers = {"Authorization": f"Bearer {KEYS[0]}"}
    for size, status in ((2000, 200), (1001, 422), (1000, 200)):
        answer = keyed.client.post("/v1/files", files={"file": ("a", b"x" * size)}, headers=headers)
        assert answer.status_code == status, answer.text
    raised = settings.model_copy(update={"owner_quota_bytes": 0, "api_keys": KEYS, "disk_floor_bytes": 0})
    for free_of_limit in (raised, settings.model_copy(update={"disk_floor_bytes": 0})):
        service = start(free_of_limit)
        answer = service.client.post("/v1/files", files={"file": ("a", b"x" * 5000)}, headers=headers)
        assert answer.status_code == 200, answer.text
