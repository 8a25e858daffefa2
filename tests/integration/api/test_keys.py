"""API keys: made, used, limited, ended; and nowhere to be read."""

import logging
from pathlib import Path
from typing import Any

import pytest
from httpx2 import Response

from actograph.settings import Settings
from api import keys as key_command
from api.__main__ import main
from storage.tables.models import ApiKeyRow
from tests.integration.api.conftest import Keyed, Problem, Service, Start


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_a_key_is_shown_once_and_not_stored(keyed: Keyed) -> None:
    body = {"name": "laptop", "role": "submit", "owner": "alice", "expires_after": {"seconds": 3600}}
    made = keyed.client.post("/v1/keys", json=body, headers=keyed.headers()).json()
    assert made["key"].startswith("acto_")
    assert len(made["key"]) == 69
    assert made["prefix"] == made["key"][:11]
    assert made["expires_at"] == made["created_at"] + 3600
    shown = keyed.client.get(f"/v1/keys/{made['id']}", headers=keyed.headers())
    assert shown.json() == {name: value for name, value in made.items() if name != "key"}
    with keyed.database.read() as session:
        row = session.get_one(ApiKeyRow, made["id"])
        assert made["key"] not in str(vars(row))
        assert len(row.sha256) == 64


def test_the_first_key_is_an_admins_and_ends_the_time_without(service: Service, problem: Problem) -> None:
    post = service.client.post
    problem(post("/v1/keys", json={"name": "a", "role": "submit"}), 409, "conflict", says="admin")
    root = post("/v1/keys", json={"name": "root", "role": "admin"}).json()
    problem(service.client.get("/v1/jobs"), 401, "unauthorized")
    assert service.client.get("/v1/jobs", headers=bearer(root["key"])).status_code == 200
    assert service.client.get("/livez").status_code == 200
    last = service.client.delete(f"/v1/keys/{root['id']}", headers=bearer(root["key"]))
    problem(last, 409, "conflict", says="last admin")
    other = post("/v1/keys", json={"name": "b", "role": "admin"}, headers=bearer(root["key"])).json()
    revoked = service.client.delete(f"/v1/keys/{root['id']}", headers=bearer(other["key"]))
    assert revoked.json()["revoked_at"] is not None
    problem(service.client.get("/v1/jobs", headers=bearer(root["key"])), 401, "unauthorized")
    problem(service.client.get("/v1/jobs"), 401, "unauthorized")


def test_a_revoked_key_is_refused_at_once_by_every_process(
    keyed: Keyed, start: Start, problem: Problem
) -> None:
    other = start(keyed.services.settings)
    key = keyed.make_key("read")
    (shown,) = keyed.client.get("/v1/keys", headers=keyed.headers()).json()["data"]
    for service in (keyed, other):
        assert service.client.get("/v1/jobs", headers=bearer(key)).status_code == 200
    assert keyed.client.delete(f"/v1/keys/{shown['id']}", headers=keyed.headers()).is_success
    for service in (keyed, other):
        problem(service.client.get("/v1/jobs", headers=bearer(key)), 401, "unauthorized")


def test_the_last_admins_key_neither_ends_nor_expires_silently(service: Service, problem: Problem) -> None:
    post, soon = service.client.post, {"expires_after": {"seconds": 3600}}
    problem(post("/v1/keys", json={"name": "a", "role": "admin"} | soon), 409, says="no expires_after")
    root = post("/v1/keys", json={"name": "root", "role": "admin"}).json()
    headers = bearer(root["key"])
    post("/v1/keys", json={"name": "guest", "role": "admin"} | soon, headers=headers)
    refused = service.client.delete(f"/v1/keys/{root['id']}", headers=headers)
    problem(refused, 409, says="the last admin's key that does not expire")
    post("/v1/keys", json={"name": "other", "role": "admin"}, headers=headers)
    assert service.client.delete(f"/v1/keys/{root['id']}", headers=headers).is_success


def test_a_keys_quota_is_its_owners(keyed: Keyed, problem: Problem) -> None:
    key = keyed.make_key("submit", owner="alice", quota_bytes=1000)
    other = keyed.make_key("submit")

    def upload(size: int, by: str) -> Response:
        return keyed.client.post("/v1/files", files={"file": ("a", bytes(size))}, headers=bearer(by))

    problem(upload(1001, key), 422, "quota_exceeded", says="available 1,000")
    assert upload(1, key).is_success
    usage = keyed.client.get("/v1/activations/stats", headers=bearer(key)).json()
    assert (usage["owner_quota_bytes"], usage["available_bytes"]) == (1000, 999)
    assert upload(1001, other).is_success


def test_keys_are_in_no_log_no_error_and_no_database(
    keyed: Keyed, settings: Settings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, wrong = keyed.make_key("submit"), "acto_" + "1" * 64
    seen = []
    with caplog.at_level(logging.DEBUG):
        for key in (good, wrong, "root-key"):
            seen += [
                keyed.client.get("/v1/jobs", headers=bearer(key)).text,
                keyed.client.get(f"/v1/keys/{good}", headers=bearer(key)).text,
                keyed.client.get(f"/v1/{good}", headers=bearer(key)).text,
                keyed.client.get("/v1/jobs/root-key", headers=bearer(key)).text,
                keyed.client.get("/root%2Dkey/v1/jobs", headers=bearer(key)).text,
                keyed.client.get("/v1/jobs", params={"after": "root-key"}, headers=bearer(key)).text,
                keyed.client.get(f"/v1/models/{wrong}", headers=bearer(key)).text,
                keyed.client.post("/v1/jobs", json={"model": key}, headers=bearer(key)).text,
            ]

        def fail(*_: Any, **__: Any) -> None:
            raise RuntimeError("broken")

        monkeypatch.setattr("storage.jobs.jobs.find", fail)
        seen.append(keyed.client.get("/v1/jobs", headers=bearer(good)).text)
    secrets = (good, wrong, "root-key")
    for text in (*seen, *(record.getMessage() for record in caplog.records if record.name != "httpx2")):
        assert not any(secret in text for secret in secrets), text
    home = Path(settings.home)
    for path in home.glob("actograph.db*"):
        content = path.read_bytes()
        assert not any(secret.encode() in content for secret in secrets), path


def test_the_supervisors_key_makes_nobody_else_need_one(start: Start, settings: Settings) -> None:
    service = start(settings.model_copy(update={"supervisor_key": "own"}))
    assert service.client.get("/v1/workers").status_code == 200
    service.client.post("/v1/keys", json={"name": "root", "role": "admin"})
    assert service.client.get("/v1/workers").status_code == 401
    assert service.client.get("/v1/workers", headers=bearer("own")).status_code == 200


def test_the_first_key_is_made_on_the_server_without_a_service(
    settings: Settings, start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACTOGRAPH_HOME", str(settings.home))
    assert key_command.main(["create", "first"]) == 0
    key = capsys.readouterr().out.strip()
    service = start(settings)
    assert service.client.get("/v1/keys", headers=bearer(key)).json()["data"][0]["role"] == "admin"
    assert service.client.get("/v1/jobs").status_code == 401


def test_a_public_address_without_keys_is_refused_in_one_line(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACTOGRAPH_HOME", str(settings.home))
    monkeypatch.setattr("storage.redaction.set_up_logging", lambda _: None)  # this process has its own
    monkeypatch.setattr("uvicorn.run", lambda *_, **__: pytest.fail("other machines are served"))
    for host in ("0.0.0.0", "::", "example.org"):
        monkeypatch.setenv("ACTOGRAPH_HOST", host)
        assert main() == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("actograph api: without API keys only loopback is served")
        assert host in line and "ACTOGRAPH_API_KEYS" in line
