"""Repairs after crashes: work without messages, dead workers, jobs that nobody ends."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from actograph.settings import Settings
from storage.jobs import jobs
from storage.queue import workers
from storage.tables.models import WorkerRow
from storage.upkeep.reconcile import Reconciler
from tests.integration.api.conftest import Service, Start
from tests.integration.conftest import RedisProcess
from tests.support import leasing

Eventually = Callable[[Callable[[], bool]], None]


@pytest.fixture
def run_upkeep() -> Iterator[Callable[[Service], None]]:
    """Runs rounds of upkeep, which a process of its own does, until the test ends."""
    stop, threads = threading.Event(), list[threading.Thread]()

    def run(service: Service) -> None:
        upkeep = Reconciler(service.services.settings, service.database, service.services.store, stop)
        threads.append(threading.Thread(target=upkeep.run))
        threads[-1].start()

    yield run
    stop.set()
    for thread in threads:
        thread.join()


def test_the_samples_of_a_dead_worker_are_given_to_another(service: Service) -> None:
    worker_id = service.load_model()
    job_id = service.submit()
    with service.database.write() as session:
        workers.set_busy(session, worker_id, job_id)
        leasing.claim(session, job_id, worker_id=worker_id)
    leasing.end_grace(service.database)
    service.reconcile()
    assert service.next_job() is None, "the worker is alive"
    with service.database.write() as session:
        session.execute(sa.update(WorkerRow).values(heartbeat_at=1.0))
    service.reconcile()
    assert service.next_job() == job_id
    # a round later it is forgotten, if it did not come back
    for known in (["offline"], []):
        with service.database.read() as session:
            assert [w.status for w in workers.find(session)] == known
        service.reconcile()
    (lease,) = service.claim(job_id)
    assert lease.token == 2


def test_redis_that_does_not_answer_is_the_waiting_reason_and_holds_up_nothing(
    start: Start,
    settings: Settings,
    redis_process: Callable[[], RedisProcess],
    eventually: Eventually,
    run_upkeep: Callable[[Service], None],
) -> None:
    server = redis_process()
    service = start(settings.model_copy(update={"broker_url": server.url, "reconcile_seconds": 0.05}))
    service.load_model()
    run_upkeep(service)

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
    eventually(lambda: service.client.get(f"/v1/jobs/{before}").json()["status"] == "failed")
    assert service.next_job() == during
    server.start()
    eventually(lambda: reason(during) is None)


@contextmanager
def workers_table_away(service: Service) -> Iterator[None]:
    """The workers table has another name meanwhile; later tests share the Postgres database."""
    with service.database.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE workers RENAME TO workers_away"))
    try:
        yield
    finally:
        with service.database.engine.begin() as connection:
            connection.execute(sa.text("ALTER TABLE workers_away RENAME TO workers"))


def test_upkeep_outlives_a_database_that_goes_and_comes(
    start: Start,
    settings: Settings,
    caplog: pytest.LogCaptureFixture,
    eventually: Eventually,
    run_upkeep: Callable[[Service], None],
) -> None:
    service = start(settings.model_copy(update={"reconcile_seconds": 0.05}))
    run_upkeep(service)
    with caplog.at_level(logging.INFO, "storage.upkeep.reconcile"):
        with workers_table_away(service):
            eventually(lambda: "healing waits" in caplog.text)
            time.sleep(0.3)
            assert caplog.text.count("healing waits") == 1, "said once, not every round"
        eventually(lambda: "all services answer again" in caplog.text)
    job_id = service.submit(deadline_seconds=1000)
    with service.database.write() as session:
        jobs.get(session, job_id).deadline_at = 1.0
    eventually(lambda: service.client.get(f"/v1/jobs/{job_id}").json()["status"] == "failed")
