"""One claim: who is next, in the order that `queue_position` shows."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from actograph.contract.model_loads import ModelLoadOptions
from actograph.contract.resources import JobStatus
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import claim, leases, model_loads, pause, workers
from storage.queue.claim import Asking, HeldModel
from tests.support import leasing
from tests.support.submitting import insert_chat

Submit = Callable[..., str]
ME, OTHER = "wrk_" + "a" * 32, "wrk_" + "b" * 32


def take(database: Database, worker_id: str = ME, room: int = 1, **asking: Any) -> Sequence[str]:
    """Jobs of the samples that a worker gets, all jobs being open."""
    values = {"worker_id": worker_id, "held": HeldModel("demo")} | asking
    found = claim.claim(database, Asking(**values), lambda _job: room)
    return [] if found is None else [lease.job_id for lease in found.samples] or [found.job.id]


def test_the_most_urgent_goes_first_and_then_the_one_served_longest_ago(
    database: Database, submit: Submit
) -> None:
    first, second, late, urgent = submit(3), submit(3), submit(priority=9), submit(priority=1)
    other = submit(model="other")
    with database.read() as session:
        found = claim.positions(
            session, *(jobs.get(session, one) for one in (late, other, first, urgent, second))
        )
    assert found == {urgent: 1, first: 2, second: 3, late: 4, other: 1}
    served = [job_id for worker in (ME, OTHER) * 4 for job_id in take(database, worker)]
    assert served == [urgent, *[first, second] * 3, late]
    assert take(database) == []


def test_a_new_job_goes_before_those_that_were_served(database: Database, submit: Submit) -> None:
    old = submit(9)
    take(database)
    new = submit(1)
    assert [*take(database), *take(database)] == [new, old]


def test_a_job_that_is_not_open_is_named_and_no_other_worker_reads_its_dataset(
    database: Database, submit: Submit
) -> None:
    job_id = submit(2)
    with database.write() as session:
        workers.register(session, ME, hostname="here", pid=1, model="demo")
        row = jobs.get(session, job_id)
        row.total, row.pending = None, 1
    assert take(database, room=0) == [job_id]
    assert take(database, OTHER) == []


def test_a_job_that_was_read_may_be_opened_by_every_worker(database: Database, submit: Submit) -> None:
    job_id = submit(3)
    with database.write() as session:
        for worker_id in (ME, OTHER):
            workers.register(session, worker_id, hostname="here", pid=1, model="demo")
    assert take(database) == [job_id]
    assert take(database, OTHER, room=0) == [job_id], "the other one opens it too"
    assert take(database, OTHER) == [job_id]


def test_what_may_not_start_waits(database: Database, submit: Submit) -> None:
    overdue, left, mine = submit(deadline_seconds=900), submit(), submit()
    with database.write() as session:
        jobs.get(session, overdue).deadline_at = 1.0
        jobs.get(session, mine).owner = "key:1"
    assert take(database, without=[left], owners=["key:1"]) == []
    with database.write() as session:
        pause.start(session, by="local", reason=None)
    assert take(database) == []
    with database.write() as session:
        pause.end(session)
    assert [*take(database), *take(database), *take(database)] == [left, mine]


def test_chats_are_claimed_at_once_and_leave_one_claim_in_eight(database: Database, submit: Submit) -> None:
    night = submit(9)
    first, second, third = (insert_chat(database, "demo", temperature=heat) for heat in (1.0, 0.0, 1.0))
    assert take(database, room=8, chats=claim.CHATS_IN_A_ROW) == [night] * 8
    assert take(database, room=2) == [first, second]
    assert take(database, room=8, chats=claim.CHATS_IN_A_ROW) == [night]
    assert take(database, room=8, chats=claim.CHATS_IN_A_ROW) == [third], "nothing else waits"
    last, idle = insert_chat(database, "demo"), insert_chat(database, "demo", priority=5)
    assert take(database, room=8, chats_only=True) == [last], "the other one is less urgent"
    assert take(database, room=8) == [idle]
    assert take(database, chats_only=True) == []


def test_what_joins_a_run_is_no_suspect_and_opens_nothing(database: Database, submit: Submit) -> None:
    job_id = submit(3)
    asked = claim.Asking(worker_id=ME, held=claim.HeldModel("demo"), joins=True)
    found = claim.claim(database, asked, lambda _job: 0)
    assert found is not None and (found.job.id, found.samples) == (job_id, ())
    assert found.job.status == JobStatus.QUEUED, "it is opened elsewhere"
    with database.write() as session:
        workers.register(session, ME, hostname="here", pid=1, model="demo")
    assert take(database, room=2, joins=True) == [job_id] * 2
    for _ in range(leases.SUSPECT_AFTER):
        leasing.lose(database)
        with database.write() as session:
            leasing.claim(session, job_id, worker_id=ME, count=3)
    leasing.lose(database)
    found = claim.claim(database, asked, lambda _job: 3)
    assert found is not None and not found.samples, "its suspects need a run of their own"
    assert len(take(database, room=3)) == 1, "and run in groups"


def test_a_model_is_held_until_its_turn_is_over(database: Database, submit: Submit) -> None:
    for worker_id, model in ((ME, "demo"), (OTHER, "third")):
        with database.write() as session:
            workers.register(session, worker_id, hostname="here", pid=1, model=model)
            workers.set_idle(session, worker_id, model)
    own, other, _ = submit(9), submit(9, model="other"), submit(9, model="third")
    mine: dict[str, Any] = {"may_load": ["demo", "other", "third"]}
    assert take(database, **mine) == [own]
    assert take(database, **mine) == [own], "of equally urgent jobs those of the held model"
    assert take(database, had_turn=True, **mine) == [other]
    with database.write() as session:
        workers.set_idle(session, ME, "demo")
    urgent = submit(model="other", priority=1)
    assert take(database, **mine) == [urgent]
    with database.write() as session:
        workers.set_idle(session, ME, "demo")
        load = model_loads.create(session, "other", ModelLoadOptions()).id
    assert take(database, **mine) == [load]


def test_a_job_of_another_variant_of_the_model_waits_like_one_of_another_model(
    database: Database, submit: Submit
) -> None:
    pinned, free = submit(9), submit(1)
    with database.write() as session:
        jobs.get(session, pinned).identity_sha256 = "a"
    held = HeldModel("demo", "b")
    assert take(database, held=held) == [free]
    assert take(database, held=held) == [pinned], "nothing else is left"


def test_a_look_waits_for_no_claim(database: Database, submit: Submit) -> None:
    """A worker that may load other models looks in a read while another one claims."""
    job_id = submit(model="other")
    asking = Asking(worker_id=ME, held=HeldModel("demo"), may_load=("other",))
    with database.write() as claiming:
        claim._load_alone(claiming)
        with ThreadPoolExecutor(1) as pool:

            def look() -> str | None:
                with database.read() as session:
                    found = claim.choose(session, asking)
                    return None if found is None else found.id

            assert pool.submit(look).result(timeout=30) == job_id


def test_no_worker_opens_a_job_without_a_sample_to_claim(
    database: Database, submit: Submit, subtests: pytest.Subtests
) -> None:
    """Opening it may load a model."""
    job_id = submit(2, model="other")
    leasing.begin(database, job_id, 2, worker_id=OTHER)
    for asking in ({"joins": True, "held": HeldModel("other")}, {"may_load": ("other",)}):
        with subtests.test(asking=asking):
            with database.write() as session:
                jobs.lock(session, job_id).pending = 1
            assert take(database, room=0, **asking) == []
            with database.read() as session:
                assert not jobs.get(session, job_id).pending
