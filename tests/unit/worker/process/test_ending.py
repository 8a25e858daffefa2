"""When an idle worker ends by itself."""

from storage.index.database import Database
from storage.jobs import jobs
from tests.support.submitting import insert_capture
from worker.process.ending import Ending, IdleWatch


class Watch:
    """An idle watch of a worker that serves `model`, with a clock of our own."""

    def __init__(self, database: Database, model: str, ending: Ending) -> None:
        self.now, self.ends = 0.0, 0
        self._watch = IdleWatch(ending, database, [model], self._end, clock=lambda: self.now)

    def _end(self) -> None:
        self.ends += 1

    def has_ended(self, *, worked: bool = False) -> bool:
        before = self.ends
        self._watch.note(worked)
        return self.ends > before


def test_a_drain_ends_once_no_job_of_its_model_is_open(database: Database) -> None:
    job_id = insert_capture(database, "ab")
    with database.read() as session:
        model = jobs.get(session, job_id).model
    mine, other = Watch(database, model, Ending(drain=True)), Watch(database, "other", Ending(drain=True))
    assert other.has_ended(), "jobs of other models do not matter"
    assert not mine.has_ended(), "another worker may run its samples, and lose them"
    with database.write() as session:
        jobs.cancel(session, job_id)
    assert not mine.has_ended(worked=True), "there may be more"
    assert mine.has_ended()


def test_a_worker_ends_after_so_long_without_work(database: Database) -> None:
    watch = Watch(database, "m", Ending(max_idle=60))
    watch.now = 59
    assert not watch.has_ended()
    assert not watch.has_ended(worked=True)
    watch.now = 118
    assert not watch.has_ended()
    watch.now = 119
    assert watch.has_ended()


def test_a_worker_without_conditions_goes_on(database: Database) -> None:
    assert not Ending().is_wanted
    watch = Watch(database, "m", Ending())
    watch.now = 1e9
    assert not watch.has_ended()
