"""Probes, models, workers, queue, keys, and the one shape of all errors."""

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from actograph.settings import Settings
from api.app import create_app
from storage.queue import workers
from storage.tables.models import WorkerRow
from tests.integration.api.conftest import Keyed, Problem, Service, Start


def test_probes_of_a_service_that_is_ready(service: Service) -> None:
    service.load_model()
    assert service.client.get("/livez").text == "ok\n"
    lines = service.client.get("/readyz").text.splitlines()
    assert lines == ["ok", "[+]database ok", "[+]broker ok", "[+]store ok", "[+]worker ok"]
    health = service.client.get("/health")
    assert (health.status_code, health.json()["status"]) == (200, "ok")


def test_probes_name_what_is_missing(start: Start, settings: Settings) -> None:
    service = start(settings.model_copy(update={"broker_url": "redis://127.0.0.1:1/0"}))
    assert service.client.get("/livez").status_code == 200
    ready = service.client.get("/readyz")
    assert ready.status_code == 503
    assert "[+]database ok" in ready.text
    assert "[-]broker the broker does not answer" in ready.text
    assert "[-]worker no worker has a model loaded" in ready.text
    health = service.client.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "unavailable")


def test_a_database_that_is_away_is_503_and_the_process_lives(service: Service, problem: Problem) -> None:
    if not service.database.is_sqlite:
        pytest.skip("a missing table is an OperationalError in SQLite alone")
    with service.database.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE jobs RENAME TO jobs_away"))
    answer = service.client.get("/v1/jobs")
    problem(answer, 503, "service_unavailable")
    assert "jobs_away" not in answer.text
    assert service.client.get("/livez").status_code == 200
    with service.database.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE jobs_away RENAME TO jobs"))
    assert service.client.get("/v1/jobs").status_code == 200


def test_a_database_without_tables_is_not_served(settings: Settings, tmp_path: Path) -> None:
    settings = settings.model_copy(update={"database_url": f"sqlite:///{tmp_path / 'empty.db'}"})
    with pytest.raises(Exception, match=r"actograph service migrate"), TestClient(create_app(settings)):
        pass


def test_the_queue_counts_jobs_samples_messages_and_workers(service: Service) -> None:
    service.load_model()
    running = service.submit(inputs=[{"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}])
    later, sooner = service.submit(), service.submit(priority=1)
    service.claim(running, 2)
    queue = service.client.get("/v1/queue").json()
    assert queue["jobs"] == {"queued": 2, "in_progress": 1}
    assert queue["samples"] == {"pending": 3, "leased": 2}
    assert queue["next"] == [sooner, later]
    assert queue["messages"] == 3
    assert queue["workers"]["ready"] == 1


# Keys


def test_a_worker_whose_heartbeat_is_late_is_silent(service: Service) -> None:
    late, busy = service.load_model(), service.load_model()
    job_id = service.submit()
    with service.database.write() as session:
        workers.set_busy(session, busy, job_id)
        session.get_one(WorkerRow, late).heartbeat_at -= service.services.settings.lease_seconds / 2 + 1
    shown = {one["id"]: one["status"] for one in service.client.get("/v1/workers").json()["data"]}
    assert shown == {late: "silent", busy: "busy"}


def test_anything_else_is_kept_out(keyed: Keyed, problem: Problem, subtests: pytest.Subtests) -> None:
    for header in [
        "",
        "root-key",
        "Bearer",
        "Bearer ",
        "Bearer root",
        "Bearer root-keyx",
        "Basic root-key",
        "Bearer ü",
    ]:
        with subtests.test(header=header):
            headers = {"Authorization": header.encode("latin-1")}
            answer = keyed.client.get("/v1/jobs", headers=headers)  # type: ignore[arg-type]
            problem(answer, 401, "unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "root-key" not in answer.text


def test_nobodys_body_is_read_before_they_are_known(keyed: Keyed, problem: Problem) -> None:
    answer = keyed.client.post("/v1/files", files={"file": ("x", b"x" * 100)})
    problem(answer, 401, "unauthorized")
    assert keyed.client.get("/v1/files", headers={"Authorization": "Bearer root-key"}).json()["data"] == []


# Errors


def test_every_route_answers_a_wrong_method_and_an_unknown_id_in_the_same_shape(
    service: Service, problem: Problem
) -> None:
    schema = service.client.get("/openapi.json").json()
    for path, operations in schema["paths"].items():
        concrete = path.replace("{layer}", "0").replace("{", "").replace("}", "")
        problem(service.client.put(concrete), 405, "method_not_allowed")
        if "_id}" in path:
            for method in (name for name, one in operations.items() if "requestBody" not in one):
                params = {"hook": "embed"} if path.endswith("/matrix") else {}
                answer = service.client.request(method, concrete, params=params)
                problem(answer, 404, "not_found")


def test_an_unexpected_failure_is_logged_and_tells_nothing(
    service: Service, problem: Problem, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the secret reason")

    monkeypatch.setattr("storage.jobs.jobs.find", fail)
    answer = service.client.get("/v1/jobs", headers={"x-request-id": "night-7"})
    problem(answer, 500, "internal_error")
    assert answer.headers["x-request-id"] == "night-7"
    assert "[night-7]" in answer.json()["detail"]
    assert "secret" not in answer.text
    assert "the secret reason" in caplog.text
    assert "GET /v1/jobs" in caplog.text
