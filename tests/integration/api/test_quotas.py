"""Quotas on what is stored: refusals with numbers, visible pauses that end by themselves, usage by owner."""

from typing import Any

from actograph.settings import Settings
from tests.integration.api.conftest import EMBED, Service, Start, capture_spec

USAGE = "/v1/activations/stats"
KEYS = ("first-key", "second-key")


def headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def submit(service: Service, key: str, **changes: Any) -> str:
    """The id of a job."""
    answer = service.client.post("/v1/jobs", json=capture_spec(**changes), headers=headers(key))
    return str(answer.json()["id"])


def test_usage_adds_up_by_owner(start: Start, settings: Settings) -> None:
    service = start(settings.model_copy(update={"api_keys": KEYS}))
    for key in (*KEYS, KEYS[0]):
        service.finish(*service.claim(submit(service, key)), tensors=EMBED)
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


def test_one_owner_at_the_quota_holds_up_nobody_else(start: Start, settings: Settings) -> None:
    service = start(settings.model_copy(update={"owner_quota_bytes": 1000, "api_keys": KEYS}))
    full = submit(service, KEYS[0], inputs=[{"prompt": "a"}, {"prompt": "b"}])
    session_id = service.finish(*service.claim(full), tensors=EMBED)
    other = submit(service, KEYS[1])
    service.forget_messages()
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
    service.client.post(f"/v1/jobs/{other}/cancel", headers=me)
    assert service.next_job() == full
