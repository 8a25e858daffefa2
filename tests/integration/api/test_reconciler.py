"""Repairs after crashes: work without messages, dead workers, jobs that nobody ends."""

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import redis
import sqlalchemy as sa

from actograph.contract.resources import WorkerStatus
from actograph.settings import Settings
from storage.index import events
from storage.jobs import jobs
from storage.queue import unserved_jobs, workers
from storage.tables.models import DutyRow, SampleRow, WorkerRow
from storage.upkeep import duties
from tests.integration.api.conftest import capture_spec

if TYPE_CHECKING:
    from tests.integration.api.conftest import Service, Start
    from tests.integration.conftest import RedisProcess

pytestmark = pytest.mark.integration


@pytest.fixture
def reconcile(service: "Service") -> Callable[[], None]:
    return service.reconcile


def age(service: "Service", **columns: float) -> None:
    """Set times of all samples or workers, as if they had been written long ago."""
    with service.database.write() as session:
        if "lease_until" in columns:
            session.execute(sa.update(SampleRow).values(lease_until=columns["lease_until"]))
        else:
            session.execute(sa.update(WorkerRow).values(**columns))


def test_an_idle_worker_is_given_the_urgent_job_first_whatever_messages_there_are(
    service: "Service",
) -> None:
    late, urgent = service.submit(priority=9), service.submit(priority=0)
    assert service.next_job() == urgent
    service.finish(*service.claim(urgent))
    assert service.next_job() == late
    assert service.next_job("other") is None


def test_a_hub_job_without_samples_is_given_to_one_worker(service: "Service") -> None:
    worker_id = service.load_model()
    spec = {"kind": "evaluation", "model": "demo", "dataset": {"hub": "openai/gsm8k"}}
    job_id = service.client.post("/v1/jobs", json=spec).json()["id"]
    assert service.next_job() == job_id
    with service.database.write() as session:
        workers.set_busy(session, worker_id, job_id)
    assert service.next_job() is None, "one reads the dataset"


def test_ended_jobs_are_given_to_nobody(service: "Service") -> None:
    done, cancelled = service.submit(), service.submit()
    service.finish(*service.claim(done))
    service.client.post(f"/v1/jobs/{cancelled}/cancel")
    assert service.next_job() is None


def test_the_samples_of_a_dead_worker_are_given_to_another(
    service: "Service", reconcile: Callable[[], None]
) -> None:
    worker_id = service.load_model()
    job_id = service.submit()
    service.claim(job_id)
    with service.database.write() as session:
        workers.set_busy(session, worker_id, job_id)
    reconcile()
    assert service.next_job() is None, "the worker is alive"
    age(service, lease_until=1.0)
    age(service, heartbeat_at=1.0)
    reconcile()
    assert service.next_job() == job_id
    with service.database.read() as session:
        assert [w.status for w in workers.find(session)] == []
    (lease,) = service.claim(job_id)
    assert lease.token == 2


def test_a_worker_that_fell_silent_counts_as_offline(
    service: "Service", reconcile: Callable[[], None]
) -> None:
    worker_id = service.load_model()
    age(service, heartbeat_at=time.time() - service.services.settings.lease_seconds - 1)
    reconcile()
    (worker,) = service.client.get("/v1/workers").json()["data"]
    assert (worker["id"], worker["status"]) == (worker_id, WorkerStatus.OFFLINE)
    with service.database.write() as session:
        workers.heartbeat(session, worker_id, {})
    reconcile()
    assert service.client.get("/v1/workers").json()["data"][0]["status"] == WorkerStatus.READY


def test_an_idle_worker_joins_a_job_that_another_one_runs(service: "Service") -> None:
    busy = service.load_model()
    job_id = service.submit(inputs=[{"prompt": str(i)} for i in range(2)])
    service.claim(job_id)
    with service.database.write() as session:
        workers.set_busy(session, busy, job_id)
    assert service.next_job("other") is None, "the worker of another model is of no help"
    assert service.next_job() == job_id
    service.claim(job_id)
    assert service.next_job() is None, "every sample is leased"


def test_a_job_whose_model_no_worker_serves_says_so_once(
    service: "Service",
) -> None:
    service.load_model("other")
    job_id = service.submit()
    shown = service.client.get(f"/v1/jobs/{job_id}").json()
    assert "no live worker holds demo" in shown["waiting_reason"]
    assert unserved_jobs.log_waiting(service.database, patience_seconds=60) == [], "workers may be restarting"
    assert unserved_jobs.log_waiting(service.database, patience_seconds=0) == [job_id]
    assert unserved_jobs.log_waiting(service.database, patience_seconds=0) == []
    with service.database.read() as session:
        told = [event for event in events.after(session, job_id, 0) if event.event == "job.waiting"]
    assert [event.data["reason"] for event in told] == [shown["waiting_reason"]]
    service.load_model()
    assert service.client.get(f"/v1/jobs/{job_id}").json()["waiting_reason"] is None


def test_a_cancelling_job_ends_once_no_lease_is_alive(
    service: "Service", reconcile: Callable[[], None]
) -> None:
    job_id = service.submit(inputs=[{"prompt": "a"}, {"prompt": "b"}])
    service.claim(job_id)
    assert service.client.post(f"/v1/jobs/{job_id}/cancel").json()["status"] == "cancelling"
    reconcile()
    assert service.client.get(f"/v1/jobs/{job_id}").json()["status"] == "cancelling"
    age(service, lease_until=1.0)
    reconcile()
    job = service.client.get(f"/v1/jobs/{job_id}").json()
    assert job["status"] == "cancelled"
    assert job["finished_at"] is not None
    assert service.client.delete(f"/v1/jobs/{job_id}").status_code == 200


def test_a_job_whose_worker_died_between_its_last_sample_and_its_end_is_ended(
    service: "Service", reconcile: Callable[[], None]
) -> None:
    job_id = service.submit()
    service.claim(job_id)
    with service.database.write() as session:
        session.execute(sa.update(SampleRow).values(status="completed"))
        jobs.count_finished(session, job_id, completed=1, failed=0)
    reconcile()
    assert service.client.get(f"/v1/jobs/{job_id}").json()["status"] == "completed"


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_redis_that_does_not_answer_is_the_waiting_reason_and_holds_up_nothing(
    start: "Start", settings: Settings, redis_process: "Callable[[], RedisProcess]"
) -> None:
    server = redis_process()
    service = start(settings.model_copy(update={"broker_url": server.url, "reconcile_seconds": 0.05}))
    service.load_model()

    def reason(job_id: str) -> str | None:
        shown: str | None = service.client.get(f"/v1/jobs/{job_id}").json()["waiting_reason"]
        return shown

    before = service.submit(deadline_seconds=1000)
    assert reason(before) is None
    server.stop()
    during = service.submit()
    assert "does not answer" in (reason(during) or "")
    assert service.next_job() == before
    with service.database.write() as session:
        jobs.get(session, before).deadline_at = 1.0
    wait_for(lambda: service.client.get(f"/v1/jobs/{before}").json()["status"] == "failed")
    assert service.next_job() == during
    server.start()
    wait_for(lambda: reason(during) is None)


def test_redis_without_memory_is_the_waiting_reason_and_takes_nothing_from_submits(
    start: "Start", settings: Settings, redis_process: "Callable[[], RedisProcess]"
) -> None:
    server = redis_process()
    service = start(settings.model_copy(update={"broker_url": server.url, "reconcile_seconds": 0.05}))
    service.load_model()
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", 1)
        job_id = service.submit()
        wait_for(lambda: service.services.broker.trouble is not None)
        reason = service.client.get(f"/v1/jobs/{job_id}").json()["waiting_reason"]
        assert "Redis refuses messages" in reason
        assert "maxmemory" in reason
        (listed,) = service.client.get("/v1/jobs").json()["data"]
        assert listed["waiting_reason"] == reason
        assert service.client.post("/v1/jobs", json=capture_spec()).json()["waiting_reason"] == reason
        assert service.next_job() == job_id
        client.config_set("maxmemory", 0)
    wait_for(lambda: service.client.get(f"/v1/jobs/{job_id}").json()["waiting_reason"] is None)


@contextmanager
def workers_table_away(service: "Service") -> Iterator[None]:
    """The workers table has another name meanwhile; later tests share the Postgres database."""
    with service.database.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE workers RENAME TO workers_away"))
    try:
        yield
    finally:
        with service.database.engine.begin() as connection:
            connection.execute(sa.text("ALTER TABLE workers_away RENAME TO workers"))


def test_the_thread_outlives_a_database_that_goes_and_comes(
    start: "Start", settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    service = start(settings.model_copy(update={"reconcile_seconds": 0.05}))
    with caplog.at_level(logging.INFO, "storage.upkeep.healing"):
        with workers_table_away(service):
            wait_for(lambda: "healing waits" in caplog.text)
            time.sleep(0.3)
            assert caplog.text.count("healing waits") == 1, "said once, not every round"
        wait_for(lambda: "all services answer again" in caplog.text)
    is_healed(service)


def test_the_thread_outlives_an_error_that_nobody_foresaw(
    start: "Start", settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = start(settings.model_copy(update={"reconcile_seconds": 0.05}))

    def fail(*_: object) -> None:
        raise RuntimeError("nobody foresaw this")

    with monkeypatch.context() as patch:
        patch.setattr("storage.queue.waiting.unended", fail)
        wait_for(lambda: "nobody foresaw this" in caplog.text)
    is_healed(service)


def is_healed(service: "Service") -> None:
    """A job whose deadline passed is ended by the thread."""
    job_id = service.submit(deadline_seconds=1000)
    with service.database.write() as session:
        jobs.get(session, job_id).deadline_at = 1.0
    wait_for(lambda: service.client.get(f"/v1/jobs/{job_id}").json()["status"] == "failed")


def test_of_many_processes_one_at_a_time_heals(service: "Service") -> None:
    def take() -> bool:
        return duties.take(service.database, "a duty", 60)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda _: take(), range(32))) == 1
    with service.database.write() as session:
        session.execute(sa.update(DutyRow).where(DutyRow.name == "a duty").values(begun_at=1.0))
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda _: take(), range(32))) == 1
