"""Jobs of one priority and model take turns, and workers spread over them."""

from collections.abc import Callable

from actograph.contract.model_loads import ModelLoadOptions
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import model_loads, turns, workers
from tests.support import leasing

Submit = Callable[..., str]
ME, OTHER = "wrk_" + "a" * 32, "wrk_" + "b" * 32


def take(database: Database, job_id: str, worker_id: str = ME) -> str:
    """A message for `job_id` comes to a worker; the job that its slice goes to."""
    with database.write() as session:
        chosen = turns.next_job(session, job_id, worker_id)
        turns.begin(session, chosen)
        jobs.start(session, chosen)
        return chosen


def test_messages_of_one_job_alone_serve_its_siblings_too(database: Database, submit: Submit) -> None:
    first, second, third = submit(9), submit(9), submit(9)
    assert take(database, first) == first
    served = [take(database, first) for _ in range(6)]
    assert served == [second, third, first, second, third, first]


def test_a_job_that_was_never_served_has_its_turn_at_once(database: Database, submit: Submit) -> None:
    first, second = submit(9), submit(9)
    take(database, second)
    assert take(database, first) == first


def test_other_priorities_models_and_loads_are_no_siblings(database: Database, submit: Submit) -> None:
    mine = submit(9)
    submit(9, priority=0)
    submit(9, priority=9)
    submit(9, model="other")
    with database.write() as session:
        model_loads.create(session, "demo", ModelLoadOptions())
    take(database, mine)
    assert take(database, mine) == mine
    with database.read() as session:
        assert not turns.another_waits(session, mine)


def test_a_job_whose_samples_are_all_taken_does_not_wait(database: Database, submit: Submit) -> None:
    mine, taken = submit(9), submit(1)
    take(database, mine)
    with database.read() as session:
        assert turns.another_waits(session, mine)
    take(database, taken)
    with database.write() as session:
        leasing.claim(session, taken, worker_id=OTHER, count=1)
    assert take(database, mine) == mine
    with database.read() as session:
        assert not turns.another_waits(session, mine)
        assert not turns.another_waits(session, "job_" + "0" * 32)
    # its message finds nothing to do there, and serves who has work
    assert take(database, taken) == mine


def test_workers_spread_over_jobs(database: Database, submit: Submit) -> None:
    first, second = submit(99), submit(99)
    with database.write() as session:
        for worker_id in (ME, OTHER):
            workers.register(session, worker_id, hostname="here", pid=1, model="demo")
    for job_id in (second, first):
        take(database, job_id)
    for _ in range(4):
        with database.write() as session:
            workers.set_busy(session, OTHER, second)
            # whatever was served longest ago: one worker is on the second job already
            assert turns.next_job(session, second, ME) == first
            turns.begin(session, first)
            assert not turns.another_waits(session, first)
    with database.write() as session:
        workers.set_idle(session, OTHER)
        assert turns.another_waits(session, first)
