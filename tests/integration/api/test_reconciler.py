"""What a crash left behind is put right: lost messages, dead workers, jobs that nobody ends."""

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import redis
import sqlalchemy as sa
from api.unserved_jobs import UnservedJobs

from actograph.contract.resources import WorkerStatus
from actograph.settings import Settings
from api.reconciler import Reconciler
from storage import events, jobs, routing, workers
from storage.models import SampleRow, WorkerRow

if TYPE_CHECKING:
    from tests.integration.api.conftest import Service, Start
    from tests.integration.conftest import RedisProcess

pytestmark = pytest.mark.integration


@pytest.fixture
def reconcile(service: "Service") -> Callable[[], list[str]]:
    return Reconciler(service.services).reconcile_once


def flush(service: "Service") -> None:
    with redis.Redis.from_url(service.services.settings.broker_url) as client:
        client.flushdb()


def age(service: "Service", **columns: float) -> None:
    """Set times of all samples or workers, as if they had been written long ago."""
    with service.database.write() as session:
        if "lease_until" in columns:
            session.execute(sa.update(SampleRow).values(lease_until=columns["lease_until"]))
        else:
            session.execute(sa.update(WorkerRow).values(**columns))


def test_a_job_whose_message_waits_is_left_alone(
    service: "Service", reconcile: Callable[[], list[str]]
) -> None:
    service.submit()
    assert reconcile() == []
    assert len(service.messages()) == 1


def test_jobs_are_woken_again_when_redis_lost_them_the_urgent_first(
    service: "Service", reconcile: Callable[[], list[str]]
) -> None:
    late, urgent = service.submit(priority=9), service.submit(priority=0)
    flush(service)
    assert service.messages() == []
    assert reconcile() == [urgent, late]
    assert service.services.broker.waiting_job_ids() == {urgent, late}
    assert reconcile() == []


def test_a_hub_job_without_samples_is_woken_too(
    service: "Service", reconcile: Callable[[], list[str]]
) -> None:
    spec = {"kind": "evaluation", "model": "demo", "dataset": {"hub": "openai/gsm8k"}}
    job_id = service.client.post("/v1/jobs", json=spec).json()["id"]
    flush(service)
    assert reconcile() == [job_id]


def test_ended_jobs_are_never_woken(service: "Service", reconcile: Callable[[], list[str]]) -> None:
    done, cancelled = service.submit(), service.submit()
    service.finish(*service.claim(done))
    service.client.post(f"/v1/jobs/{cancelled}/cancel")
    flush(service)
    assert reconcile() == []


def test_the_samples_of_a_dead_worker_are_given_to_another(
    service: "Service", reconcile: Callable[[], list[str]]
) -> None:
    worker_id = service.load_model()
    job_id = service.submit()
    service.claim(job_id)
    with service.database.write() as session:
        workers.set_busy(session, worker_id, job_id)
    flush(service)
    assert reconcile() == [], "the worker is alive"
    age(service, lease_until=1.0)
    age(service, heartbeat_at=1.0)
    assert reconcile() == [job_id]
    with service.database.read() as session:
        assert [w.status for w in workers.find(session)] == []
    (lease,) = service.claim(job_id)
    assert lease.token == 2


def test_a_worker_that_fell_silent_counts_as_offline(
    service: "Service", reconcile: Callable[[], list[str]]
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


def test_an_idle_worker_joins_a_job_that_another_one_runs(
    service: "Service", reconcile: Callable[[], list[str]]
) -> None:
    busy, idle, other = service.load_model(), service.load_model(), service.load_model("other")
    job_id = service.submit(inputs=[{"prompt": str(i)} for i in range(4)])
    service.claim(job_id)
    with service.database.write() as session:
        workers.set_busy(session, busy, job_id)
        workers.set_offline(session, idle)
    flush(service)
    assert reconcile() == [], "the worker of the other model is of no help"
    with service.database.write() as session:
        workers.set_idle(session, idle)
    assert reconcile() == [job_id]
    assert reconcile() == [], "it has a message now"
    flush(service)
    with service.database.write() as session:
        workers.set_busy(session, idle, job_id)
        workers.set_idle(session, other)
    assert reconcile() == []


def test_a_message_for_holders_that_are_gone_counts_as_lost(
    service: "Service", reconcile: Callable[[], list[str]]
) -> None:
    worker_id = service.load_model()
    job_id = service.submit()
    assert service.services.broker.waiting() == {routing.holders_queue("demo"): {job_id}}
    assert reconcile() == []
    with service.database.write() as session:
        workers.set_offline(session, worker_id)
    assert reconcile() == [job_id]
    assert service.services.broker.waiting()[routing.loaders_queue("demo")] == {job_id}
    assert reconcile() == []


def test_a_job_whose_model_no_worker_serves_says_so_once(
    service: "Service",
) -> None:
    service.load_model("other")
    job_id = service.submit()
    shown = service.client.get(f"/v1/jobs/{job_id}").json()
    assert "no live worker holds demo" in shown["waiting_reason"]
    unserved = UnservedJobs(service.services, patience_seconds=0)
    assert unserved.tell() == [job_id]
    assert unserved.tell() == []
    with service.database.read() as session:
        told = [event for event in events.after(session, job_id, 0) if event.event == "job.waiting"]
    assert [event.data["reason"] for event in told] == [shown["waiting_reason"]]
    service.load_model()
    assert service.client.get(f"/v1/jobs/{job_id}").json()["waiting_reason"] is None


def test_a_cancelling_job_ends_once_no_lease_is_alive(
    service: "Service", reconcile: Callable[[], list[str]]
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
    service: "Service", reconcile: Callable[[], list[str]]
) -> None:
    job_id = service.submit()
    service.claim(job_id)
    with service.database.write() as session:
        session.execute(sa.update(SampleRow).values(status="completed"))
        jobs.count_finished(session, job_id, completed=1, failed=0)
    reconcile()
    assert service.client.get(f"/v1/jobs/{job_id}").json()["status"] == "completed"


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_the_thread_outlives_a_broker_that_goes_and_comes(
    start: "Start",
    settings: Settings,
    redis_process: "Callable[[], RedisProcess]",
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = redis_process()
    service = start(settings.model_copy(update={"broker_url": server.url, "reconcile_seconds": 0.05}))
    before = service.submit()
    with caplog.at_level(logging.INFO, "api.reconciler"):
        server.stop()
        during = service.submit()
        wait_for(lambda: "waits for a service that is away" in caplog.text)
        time.sleep(0.3)
        assert caplog.text.count("waits for a service that is away") == 1, "said once, not every round"
        server.start()
        wait_for(lambda: "all services answer again" in caplog.text)
    assert service.services.broker.waiting_job_ids() == {before, during}
    assert len(service.messages()) == 2


def test_the_thread_outlives_a_database_that_goes_and_comes(
    start: "Start", settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    service = start(settings.model_copy(update={"reconcile_seconds": 0.05}))
    with caplog.at_level(logging.INFO, "api.reconciler"):
        with service.database.engine.begin() as connection:
            connection.execute(sa.text("ALTER TABLE workers RENAME TO workers_away"))
        wait_for(lambda: "waits for a service that is away" in caplog.text)
        with service.database.engine.begin() as connection:
            connection.execute(sa.text("ALTER TABLE workers_away RENAME TO workers"))
        wait_for(lambda: "all services answer again" in caplog.text)
    job_id = service.submit()
    flush(service)
    wait_for(lambda: service.services.broker.waiting_job_ids() == {job_id})


def test_the_thread_outlives_what_nobody_foresaw(
    start: "Start", settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = start(settings.model_copy(update={"reconcile_seconds": 0.05}))

    def fail(*_: object) -> None:
        raise RuntimeError("nobody foresaw this")

    with monkeypatch.context() as patch:
        patch.setattr("storage.job_queue.claimable", fail)
        wait_for(lambda: "nobody foresaw this" in caplog.text)
    job_id = service.submit()
    flush(service)
    wait_for(lambda: service.services.broker.waiting_job_ids() == {job_id})
