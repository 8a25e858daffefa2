"""Workers that can serve a model, by their rows."""

from collections.abc import Callable

from storage.index import events
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import view, workers


def start(database: Database, worker_id: str, model: str, *may_load: str, ready: bool = True) -> None:
    with database.write() as session:
        served = [model, *may_load]
        workers.register(session, worker_id, hostname="here", pid=1, model=model, served=served)
        if ready:
            workers.set_idle(session, worker_id, model)


def test_a_worker_counts_as_holder_as_soon_as_it_turns_to_a_job_of_another_model(database: Database) -> None:
    start(database, "wrk_1", "a", "b")
    with database.write() as session:
        workers.set_busy(session, "wrk_1", "job_1", "b")
    with database.read() as session:
        assert workers.held_models(session) == {"b"}
    with database.write() as session:
        workers.set_idle(session, "wrk_1", "")
    with database.read() as session:
        assert workers.held_models(session) == set()
        assert workers.served_models(session).keys() == {"a", "b"}


def test_why_a_job_waits_is_said_where_nobody_can_serve_it(
    database: Database, submit: Callable[..., str]
) -> None:
    job_id = submit(1)
    with database.read() as session:
        row = jobs.get(session, job_id)
        assert view.job(session, row).waiting_reason == "no worker is alive; the job waits until one is"
    start(database, "wrk_1", "another")
    with database.read() as session:
        reason = view.job(session, row).waiting_reason
        assert reason is not None and "they serve another" in reason and "ACTOGRAPH_MODEL" in reason
    start(database, "wrk_2", "third", row.model)
    with database.read() as session:
        assert view.job(session, row).waiting_reason is None


def test_a_job_without_a_worker_is_logged_once_after_a_while(
    database: Database, submit: Callable[..., str]
) -> None:
    job_id, served = submit(1, model="demo"), submit(1, model="another")
    start(database, "wrk_1", "another")

    def log() -> list[str]:
        with database.read() as session:
            unserved = list(workers.unserved_jobs(session, -1.0))
            assert workers.unserved_jobs(session, 60.0) == [], "workers may be restarting"
        with database.write() as session:
            workers.log_unserved(session, unserved)
        return unserved

    assert [log(), log()] == [[job_id], []]
    with database.read() as session:
        (entry,) = [one for one in events.after(session, job_id, 0) if one.event == "job.waiting"]
        assert "they serve another" in entry.data["reason"]
        assert "job.waiting" not in [one.event for one in events.after(session, served, 0)]
