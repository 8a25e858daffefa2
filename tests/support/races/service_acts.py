"""Acts of the service: workers that drain, fail and come back, and API processes that tidy up."""

import random
import time
from collections.abc import Callable

import sqlalchemy as sa

from actograph.contract.resources import SampleStatus
from api.dependencies import Services
from api.openai.batches import advance_all
from storage.accounts import quotas
from storage.index import events
from storage.index.ids import new_worker_id
from storage.jobs import control, jobs
from storage.queue import leases, workers
from storage.queue.leases import LeasedSample
from storage.sessions import changes
from storage.tables.models import JobRow, SampleRow
from storage.upkeep import reaper, store_gc
from tests.support import leasing
from tests.support.races.world import DEAD_PID, HOST, MODEL, WorkerHere, World


class WorkerActs:
    """A worker's thread: mostly the drain."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._random = random.Random(world.seed * 1000 + 500 + number)
        self._worker = WorkerHere(world)

    def act(self) -> None:
        with self._world.faults.guard("drain"):
            self.drain()
        chosen = self._random.choices((self.beat, self.start_again, self.nothing), (4, 1, 6))[0]
        with self._world.faults.guard(chosen.__name__):
            chosen()

    def drain(self) -> None:
        """Serve the next wake-up; without one, look at the index for some batches."""
        if self._world.broker.take() is not None:
            self._worker.drain.serve()
        elif not self._worker.drain.look(self._random.randint(1, 4)):
            time.sleep(0.002)

    def beat(self) -> None:
        with self._worker.database.write() as session:
            workers.heartbeat(session, self._worker.id, {"free_bytes": self._random.randint(1, 1 << 40)})

    def start_again(self) -> None:
        """The process ended and another one took its place, under the same id for brevity."""
        with self._worker.database.write() as session:
            workers.set_offline(session, self._worker.id)
        self.come_back()

    def come_back(self) -> None:
        """Registered and ready, whatever was thought of it."""
        self._worker.register()
        self._worker.show_ready()

    def nothing(self) -> None:
        """Goes on with the next slice."""


class ApiActs:
    """An API process's own threads, and faults that come from outside."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = number
        self._random = random.Random(world.seed * 1000 + 900 + number)
        self._services: Services = world.apis[number % len(world.apis)]
        self._round: list[Callable[[], object]] = []
        self._acts: list[tuple[Callable[[], object], int]] = [
            (self.reconcile, 3), (self.expire_sessions, 2), (self.advance_batches, 3),
            (self.forget_chats, 1), (self.clear_store, 1),
            (self.reap, 2),
            (self.say_waiting, 2), (self.lapse, 3), (self.lose_worker, 2),
            (self.silence_workers, 1), (self.give_back, 2), (self.sum_up, 1),
        ]  # fmt: skip

    def act(self) -> None:
        """The next act; every one has come after as many as there are."""
        if not self._round:
            self._round = [act for act, times in self._acts for _ in range(times)]
            self._random.shuffle(self._round)
        chosen = self._round.pop()
        with self._world.faults.guard(chosen.__name__):
            chosen()

    @property
    def round_length(self) -> int:
        return sum(times for _, times in self._acts)

    def reconcile(self) -> None:
        # without the lock that lets one of several in: whoever lost it may be in the middle still
        self._world.healings[self._number % len(self._world.healings)].round()

    def expire_sessions(self) -> None:
        changes.expire(self._services.database, limit=20)

    def advance_batches(self) -> None:
        advance_all(self._services)

    def forget_chats(self) -> None:
        control.delete_old(self._services.database, "chats", 0.2, limit=5)

    def reap(self) -> None:
        reaper.reap(self._services.database, self._services.store)

    def clear_store(self) -> None:
        store_gc.collect(self._services.database, self._services.store, dry_run=False, seconds=0.1)

    def say_waiting(self) -> None:
        """As for jobs whose model nobody serves."""
        with self._services.database.write() as session:
            active = sa.select(JobRow.id).where(JobRow.status.in_(jobs.ACTIVE)).limit(3)
            for row in jobs.lock_all(session, session.scalars(active).all()):
                events.append(session, row.id, "job.waiting", {"reason": "a race"})

    def lapse(self) -> None:
        """Leases of workers that were stopped for too long."""
        with self._services.database.read() as session:
            holders = sa.select(SampleRow.worker_id).where(SampleRow.status == SampleStatus.LEASED).distinct()
            found = [worker_id for worker_id in session.scalars(holders.limit(3)) if worker_id]
        with self._services.database.write() as session:
            leases.take_back(session, found)
        with self._services.database.write() as session:
            # as if for the first time: here no sample may fail because of losses
            lost = sa.select(SampleRow.id).where(SampleRow.losses > 0).with_for_update(skip_locked=True)
            spared = sa.update(SampleRow).where(SampleRow.id.in_(session.scalars(lost).all()))
            suspects = SampleRow.status == SampleStatus.SUSPECT
            status = sa.case((suspects, SampleStatus.PENDING), else_=SampleRow.status)
            session.execute(spared.values(losses=0, status=status))

    def lose_worker(self) -> None:
        """A worker that begins on a sample and dies, so that the next one that starts buries it."""
        lost = new_worker_id()
        with self._services.database.write() as session:
            workers.register(
                session, lost, hostname=HOST, pid=DEAD_PID, pid_namespace=HOST, process_started=1,
                model=MODEL, served=[],
            )  # fmt: skip
        with self._services.database.read() as session:
            claimable = leasing.with_work(session)
        if claimable:
            self._claim(lost, self._random.choice(claimable))

    def silence_workers(self) -> None:
        """Workers that are silent for longer than any live one here, and are forgotten soon after."""
        with self._services.database.write() as session:
            workers.expire(session, 5.0)
        with self._services.database.write() as session:
            workers.forget(session, 10.0)

    def give_back(self) -> None:
        """A worker that was asked to end while it had a unit in hand."""
        with self._services.database.read() as session:
            claimable = leasing.with_work(session)
        if claimable:
            claimed = self._claim("wrk_" + "e" * 32, self._random.choice(claimable))
            with self._services.database.write() as session:
                leases.give_back(session, claimed)

    def _claim(self, worker_id: str, job_id: str) -> list[LeasedSample]:
        with self._services.database.write() as session:
            return leasing.claim(session, job_id, worker_id=worker_id, count=2)

    def sum_up(self) -> None:
        with self._services.database.read() as session:
            quotas.shown(session, self._services.settings)
