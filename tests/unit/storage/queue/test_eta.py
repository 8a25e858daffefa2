"""When jobs end: the arithmetic, and what the index tells of it."""

import math
from collections.abc import Callable, Sequence

import pytest
import sqlalchemy as sa

from actograph.contract.errors import ModelRefused
from actograph.contract.resources import ModelStructure
from storage import samples
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import forecast, job_view, pause, workers
from storage.tables.models import EventRow, SampleRow

Submit = Callable[..., str]


def work(*given: tuple[str, int, float]) -> list[forecast.Work]:
    return [forecast.Work(job_id=name, priority=p, worker_seconds=seconds) for name, p, seconds in given]


@pytest.mark.parametrize(
    ("given", "workers_there", "expected"),
    [
        ([("a", 5, 10.0)], 1, {"a": 10.0}),
        ([("a", 5, 10.0)], 4, {"a": 2.5}),
        # equal ones share: a has half until it ends at 20, then b is alone with its last 20
        ([("a", 5, 10.0), ("b", 5, 30.0)], 1, {"a": 20.0, "b": 40.0}),
        ([("a", 5, 10.0), ("b", 5, 30.0)], 2, {"a": 10.0, "b": 20.0}),
        ([("a", 5, 10.0), ("b", 5, 10.0), ("c", 5, 10.0)], 1, {"a": 30.0, "b": 30.0, "c": 30.0}),
        # the urgent one goes first
        ([("late", 9, 4.0), ("urgent", 0, 6.0)], 1, {"urgent": 6.0, "late": 10.0}),
        # an unknown one shares, and hides what is behind it
        ([("a", 5, 10.0), ("b", 5, math.inf), ("c", 9, 1.0)], 1, {"a": 20.0}),
        ([("a", 5, 0.0), ("b", 6, 3.0)], 1, {"a": 0.0, "b": 3.0}),
        ([("a", 5, 10.0)], 0, {}),
        ([], 1, {}),
    ],
)
def test_jobs_share_workers_by_priority(
    given: Sequence[tuple[str, int, float]], workers_there: int, expected: dict[str, float]
) -> None:
    assert forecast.ends(work(*given), workers_there) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("left", "cost", "in_hand", "expected"),
    [
        (10, 2.0, [], 20.0),
        (10, 2.0, [(4, 3.0)], 17.0),
        # a unit that takes longer than it should is not done twice over
        (10, 2.0, [(4, 100.0)], 12.0),
        (10, 2.0, [(4, 3.0), (4, 5.0)], 12.0),
        (10, None, [], math.inf),
        (0, 2.0, [], 0.0),
    ],
)
def test_what_is_in_hand_counts_as_far_as_it_should_be(
    left: int, cost: float | None, in_hand: list[tuple[int, float]], expected: float
) -> None:
    assert forecast.remaining(left, cost, in_hand) == pytest.approx(expected)


class Clock:
    """The database's time, which the test sets."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self, _session: object) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    parts = [f"samples.{part}" for part in ("claims", "leases", "lost_workers", "commits")]
    for module in ("jobs.jobs", "index.events", "queue.forecast", "queue.workers", *parts):
        monkeypatch.setattr(f"storage.{module}.now", clock)
    return clock


def add_worker(database: Database, number: int = 0, model: str = "demo") -> None:
    structure = ModelStructure(
        model=model, architecture="X", num_layers=1, hidden_size=1, vocab_size=1, context_length=9,
        dtype="float32", device="cpu", num_parameters=1, chat_template=False, eos_token_ids=[], hooks={},
        module_locations=[],
    )  # fmt: skip
    with database.write() as session:
        worker_id = f"wrk_{number:032x}"
        workers.register(session, worker_id, hostname="here", pid=1, model=model)
        workers.set_ready(session, worker_id, structure)


def run(database: Database, clock: Clock, job_id: str, *units: tuple[int, float]) -> None:
    """Units of so many samples that took so long, one after the other."""
    for count, seconds in units:
        with database.write() as session:
            jobs.start(session, job_id)
            leases = samples.claim(session, job_id, worker_id="wrk_a", count=count, lease_seconds=600)
            assert len(leases) == count
        clock.now += seconds
        with database.write() as session:
            done = sa.update(SampleRow).where(SampleRow.id.in_([lease.id for lease in leases]))
            session.execute(done.values(status="completed"))
            forecast.measure(session, job_id, samples=count, seconds=seconds)
            jobs.count_finished(session, job_id, completed=count, failed=0)


def foretold(database: Database) -> dict[str, float]:
    with database.read() as session:
        return dict(forecast.etas(session))


def test_a_steady_drain_is_foretold_from_its_first_unit_on(
    database: Database, submit: Submit, clock: Clock
) -> None:
    job_id = submit(100)
    add_worker(database)
    assert foretold(database) == {}
    run(database, clock, job_id, (10, 5.0))
    assert foretold(database) == pytest.approx({job_id: 45.0})
    run(database, clock, job_id, *[(10, 5.0)] * 4)
    assert foretold(database) == pytest.approx({job_id: 25.0})
    with database.write() as session:
        samples.claim(session, job_id, worker_id="wrk_a", count=10, lease_seconds=600)
    clock.now += 3.0
    assert foretold(database) == pytest.approx({job_id: 22.0})
    with database.read() as session:
        shown = job_view.resource(session, jobs.get(session, job_id))
    assert shown.eta_seconds == pytest.approx(22.0)
    assert shown.samples_per_second == pytest.approx(2.0)


def test_later_units_count_more_than_earlier_ones(database: Database, submit: Submit, clock: Clock) -> None:
    job_id = submit(1000)
    add_worker(database)
    run(database, clock, job_id, *[(10, 50.0)] * 10, *[(10, 10.0)] * 40)
    left = 1000 - 500
    assert foretold(database)[job_id] == pytest.approx(left * 1.0, rel=0.1)


def test_a_job_that_waits_is_foretold_by_one_like_it(
    database: Database, submit: Submit, clock: Clock
) -> None:
    first, second, urgent = submit(20), submit(10), submit(10, priority=0)
    other = submit(10, sampling={"max_tokens": 7}, priority=9)
    add_worker(database)
    run(database, clock, first, (10, 10.0))
    assert foretold(database) == pytest.approx({urgent: 10.0, first: 30.0, second: 30.0})
    with database.write() as session:
        jobs.cancel(session, other)
        # the one that ran has ended: it still tells what such jobs take
        jobs.fail(session, first, ModelRefused("gone"))
    assert foretold(database) == pytest.approx({urgent: 10.0, second: 20.0})


def test_workers_count_by_the_model_that_they_hold(database: Database, submit: Submit, clock: Clock) -> None:
    mine, other = submit(20), submit(20, model="other")
    for number in range(2):
        add_worker(database, number)
    run(database, clock, mine, (10, 10.0))
    run(database, clock, other, (10, 10.0))
    assert foretold(database) == pytest.approx({mine: 5.0})
    add_worker(database, 7, "other")
    assert foretold(database) == pytest.approx({mine: 5.0, other: 10.0})
    with database.write() as session:
        workers.set_offline(session, "wrk_" + "0" * 32)
    assert foretold(database)[mine] == pytest.approx(10.0)


def test_a_paused_queue_has_no_end_in_sight(database: Database, submit: Submit, clock: Clock) -> None:
    job_id = submit(20)
    add_worker(database)
    run(database, clock, job_id, (10, 10.0))
    with database.write() as session:
        pause.start(session, by="local", reason=None)
    assert foretold(database) == {}


def test_the_rate_is_that_of_the_last_minute(database: Database, submit: Submit, clock: Clock) -> None:
    job_id = submit(1000)
    run(database, clock, job_id, (10, 4.0))

    def rate() -> float | None:
        with database.read() as session:
            return job_view.rate(session, jobs.get(session, job_id))

    assert rate() == pytest.approx(2.5)
    run(database, clock, job_id, *[(10, 100.0)] * 3)
    assert rate() == pytest.approx(0.1)
    run(database, clock, job_id, *[(10, 5.0)] * 20)
    assert rate() == pytest.approx(2.0)
    with database.write() as session:  # as the log of an older version was
        session.execute(sa.update(EventRow).values(data={"total": 9, "completed": 1, "failed": 0}))
    assert rate() is None
