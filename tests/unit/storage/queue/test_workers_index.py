"""Workers and the models that they hold, uploaded files, and the log of a job."""

import os
from collections.abc import Callable

import sqlalchemy as sa

from actograph.contract.errors import ModelRefused
from actograph.contract.model_loads import ModelLoadOptions
from actograph.contract.models import ModelStructure
from actograph.contract.operations import WorkerActivity, WorkerStatus
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import model_loads, workers
from storage.tables.models import WorkerRow
from tests.support.structures import model_structure

Submit = Callable[..., str]
A, B = "wrk_" + "a" * 32, "wrk_" + "b" * 32


def structure(model: str = "demo", layers: int = 2) -> ModelStructure:
    return model_structure({}, model=model, num_layers=layers)


def start(database: Database, worker_id: str, model: str = "demo", *, ready: bool = True) -> None:
    with database.write() as session:
        workers.register(session, worker_id, hostname="here", pid=os.getpid(), model=model)
        if ready:
            workers.set_ready(session, worker_id, structure(model))


def shown(database: Database, worker_id: str) -> WorkerStatus:
    with database.read() as session:
        return {w.id: workers.resource(w).status for w in workers.find(session)}[worker_id]


def test_a_heartbeat_tells_the_work_since_the_last_one(database: Database) -> None:
    start(database, A)

    def told(**memory: int) -> tuple[object, dict[str, int]]:
        with database.write() as session:
            workers.heartbeat(session, A, memory)
        with database.read() as session:
            (worker,) = [workers.resource(row) for row in workers.find(session)]
        return worker.activity, worker.memory

    devices = {"device_used_bytes": 3, "device_total_bytes": 8}
    window = {"window_milliseconds": 4000, "window_computed_tokens": 2000, "window_generated_tokens": 100}
    activity, memory = told(**devices, **window, window_pass_milliseconds=3000)
    assert activity == WorkerActivity(
        seconds=4, tokens_per_second=500, generated_per_second=25, pass_share=0.75
    )
    assert memory == devices
    assert told(**window)[0] is None, "no model is held"
    assert told(**devices)[0] is None, "a worker of an earlier version"
    late, _ = told(**devices, **window, window_pass_milliseconds=4900)
    assert isinstance(late, WorkerActivity) and late.pass_share == 1
    with database.write() as session:
        workers.set_offline(session, A)
    with database.read() as session:
        assert [workers.resource(row).activity for row in workers.find(session)] == [None]


def silence(database: Database, seconds: float) -> None:
    with database.write() as session:
        session.execute(sa.update(WorkerRow).values(heartbeat_at=WorkerRow.heartbeat_at - seconds))


def test_a_worker_that_starts_while_a_model_is_loaded_anew_keeps_the_newer_structure(
    database: Database,
) -> None:
    start(database, A)
    options = ModelLoadOptions(dtype="bfloat16")
    with database.write() as session:
        asked = model_loads.create(session, "demo", options).id
        jobs.start(session, asked)
        model_loads.loaded(session, A, structure(layers=3), options)
        assert workers.structure(session, "demo") == structure(), "these options are not in force yet"
        model_loads.complete(session, asked, structure(layers=3))
    with database.write() as session:
        workers.register(session, B, hostname="here", pid=os.getpid(), model="demo")
        model_loads.loaded(session, B, structure(), ModelLoadOptions())
        assert workers.structure(session, "demo") == structure(layers=3)
        model_loads.loaded(session, B, structure(layers=4), options)
        assert workers.structure(session, "demo") == structure(layers=4)


def test_a_worker_shows_what_it_does(database: Database, submit: Submit) -> None:
    start(database, A, ready=False)
    assert shown(database, A) == WorkerStatus.STARTING
    with database.read() as session:
        assert workers.held_models(session, workers.LIVE) == set()
        assert workers.structure(session, "demo") is None
    with database.write() as session:
        workers.set_ready(session, A, structure())
    job_id = submit()
    with database.write() as session:
        workers.set_busy(session, A, job_id)
    with database.read() as session:
        assert workers.find(session)[0].job_id == job_id
        assert workers.held_models(session, workers.LIVE) == {"demo"}
    with database.write() as session:
        workers.set_idle(session, A)
    with database.write() as session:
        assert workers.find(session)[0].job_id is None
        workers.set_offline(session, A)
        assert workers.held_models(session, workers.LIVE) == set()


def test_the_structure_is_the_last_one_loaded_and_stays_known(database: Database) -> None:
    start(database, A)
    with database.write() as session:
        workers.set_ready(session, A, structure(layers=9))
        workers.set_offline(session, A)
        found = workers.structure(session, "demo")
        assert found is not None
        assert found.num_layers == 9
        assert workers.loaded_at(session, "demo") is not None
        assert workers.loaded_at(session, "other") is None


def test_a_silent_worker_expires_and_returns_with_its_next_heartbeat(database: Database) -> None:
    start(database, A)
    start(database, B)
    silence(database, 31)
    with database.write() as session:
        workers.heartbeat(session, B, {"allocated": 1})
        assert workers.expire(session, 30) == 1
        assert workers.expire(session, 30) == 0
    assert (shown(database, A), shown(database, B)) == (WorkerStatus.OFFLINE, WorkerStatus.READY)
    with database.write() as session:
        assert workers.heartbeat(session, A, {})
        assert not workers.heartbeat(session, "wrk_gone"), "the index has no such worker"
    assert shown(database, A) == WorkerStatus.READY


def test_a_worker_that_failed_to_start_says_why_and_does_not_expire(database: Database) -> None:
    start(database, A, ready=False)
    with database.write() as session:
        workers.set_failed(session, A, ModelRefused("it does not fit"))
    silence(database, 100)
    with database.write() as session:
        assert workers.expire(session, 30) == 0
        (row,) = workers.find(session)
        error = workers.resource(row).error
    assert error is not None
    assert error.message == "it does not fit"


def test_those_that_ended_long_ago_are_forgotten(database: Database) -> None:
    start(database, A)
    start(database, B)
    with database.write() as session:
        workers.set_offline(session, A)
    silence(database, 100)
    with database.write() as session:
        workers.forget(session, 200)
        assert len(workers.find(session)) == 2
        workers.forget(session, 50)
        assert [w.id for w in workers.find(session)] == [B]


def test_two_workers_may_load_one_model_at_once(database: Database, at_once: Callable[..., None]) -> None:
    start(database, A, ready=False)
    start(database, B, ready=False)
    at_once(
        lambda session: workers.set_ready(session, A, structure(layers=2)),
        lambda session: workers.set_ready(session, B, structure(layers=3)),
    )
    assert shown(database, A) == shown(database, B) == WorkerStatus.READY
    with database.read() as session:
        found = workers.structure(session, "demo")
    assert found is not None
    assert found.num_layers == 3  # as the last of them found it
