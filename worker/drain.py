"""The drain: claim a unit, run it as one batch, commit it, claim the next.

One call works on one job for a slice of time and then lets the next message in the queue
have its turn, so that no message comes near the broker's visibility timeout. What is in the
database decides; a message that comes twice or late finds nothing to claim.
"""

import logging
import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from actograph.contract import chat_job
from actograph.contract.batches import unit_key
from actograph.contract.errors import ActographError, NotFound, ServiceUnavailable
from actograph.settings import Settings
from storage import (
    chat_batches,
    job_control,
    job_queue,
    jobs,
    model_loads,
    queue_pause,
    routing,
    samples,
    turns,
    workers,
)
from storage.artifacts.store import ArtifactStore
from storage.broker import Broker
from storage.database import Database, is_away
from storage.models import JobRow
from storage.samples import LeasedSample
from storage.session_files import session_prefix
from worker.chat_share import ChatShare
from worker.commit import Committed, commit_unit
from worker.grouping import ModelGrouping
from worker.lease import LeaseKeeper
from worker.model_holder import ModelHolder
from worker.model_in_hand import HeldElsewhere, ModelInHand
from worker.outcome import Outcome
from worker.pauses import Pauses
from worker.slices import Slice, Slices
from worker.stop_signal import StopSignal

logger = logging.getLogger(__name__)

#: idle workers that one worker calls to its job when it begins
CALLED_AT_ONCE = 2

#: a worker that had nothing to do for longer was idle: that time is no sample's
IDLE_SECONDS = 0.5


class Drain:
    def __init__(
        self,
        *,
        settings: Settings,
        database: Database,
        store: ArtifactStore,
        broker: Broker,
        models: ModelHolder,
        worker_id: str,
        stop: StopSignal,
        may_load: Sequence[str] = (),
        end_process: Callable[[int], None] = os._exit,
    ) -> None:
        """`may_load` names the models that this worker may change to. `end_process` is called where a unit
        hangs: nothing else gets a stuck kernel off the device."""
        self._may_load = may_load
        self._end_process = end_process
        self._settings = settings
        self._database = database
        self._store = store
        self._broker = broker
        self._models = models
        self._worker_id = worker_id
        self._stop = stop
        self._grouping = ModelGrouping(settings.model_hold_seconds)
        self._chats = ChatShare(settings.turn_seconds)
        self._pauses = Pauses(settings, database, store)
        self._model = ModelInHand(models, database, worker_id)
        self._slices = Slices(settings=settings, database=database, store=store, model=self._model)
        #: the last commit of this slice said that the worker has nothing to do
        self._is_shown_idle = False
        #: up to when the time of this slice was counted to its units
        self._measured_to = self._slice_ended_at = 0.0

    def load(self, model: str) -> None:
        """Load a model before the first job asks for it. Raises ModelRefused."""
        self._model.engine_for(model)

    def run_slice(self, job_id: str) -> None:
        """Like `_run_slice`; where the database goes away meanwhile, the reconciler wakes the job again."""
        try:
            self._run_slice(job_id)
        except DBAPIError as error:
            if not is_away(error):
                raise
            logger.warning("job %s is left for now, the database is away: %s", job_id, error.orig)
        finally:
            self._slice_ended_at = time.monotonic()

    def _run_slice(self, job_id: str) -> None:
        """Work on a job until it has nothing left, its slice is over, or the worker stops.

        While the queue is paused nothing is begun. The message is gone then, but the job is not: it is
        woken once the queue goes on.
        """
        self._is_shown_idle = False
        if time.monotonic() - self._slice_ended_at > IDLE_SECONDS:
            self._measured_to = time.monotonic()
        if self._pauses.hold():
            return
        with self._database.write() as session:
            row = session.get(JobRow, job_id)
            if row is None or row.status not in jobs.ACTIVE:
                return
            held = self._pauses.held_owners(session)
            if row.owner in held:
                return
            if row.kind == model_loads.KIND and not self._stop.is_set():
                if not model_loads.begin(session, row, self._worker_id):
                    return
                workers.set_busy(session, self._worker_id, row.id, row.model)
                chosen: str | None = job_id
            else:
                chosen = None if self._stop.is_set() else self._choose(session, row, held)
        if chosen is None:
            self._broker.wake(job_id, row.priority)
            return
        if row.kind == model_loads.KIND:
            try:
                self._model.load_as_asked(row)
            finally:
                self._set_idle()
            return
        try:
            work_remains = self._run(chosen)
        finally:
            self._set_idle()
        # a job that went first has a message of its own; the one that was put off has lost its
        if work_remains or chosen != job_id:
            self._broker.wake(job_id, row.priority)

    def _choose(self, session: Session, row: JobRow, held: Collection[str]) -> str | None:
        """Begin the job whose turn it is or, before it, one of the loaded model; returns which.

        None where other workers hold the job's model, so that its message goes on to them.
        """
        chosen, model = row.id, row.model
        waiting = job_queue.WaitingJob(row.id, row.priority, row.model, row.kind, row.identity_sha256)
        if self._model.held is not None and not self._model.held.fits(waiting):
            if self._model.name != row.model and routing.is_held(session, row.model):
                return None
            chosen = self._grouping.choose(
                waiting,
                self._model.held,
                [job for job in job_queue.claimable(session, held) if job.kind != model_loads.KIND],
            )
            if chosen != row.id and self._model.name is not None:
                model = self._model.name
        elif row.kind == chat_job.KIND:
            chosen = self._instead_of_chat(session, row, held) or row.id
        # a sibling has the same model
        chosen = turns.next_job(session, chosen, self._worker_id, held)
        turns.begin(session, chosen)
        jobs.start(session, chosen)
        workers.set_busy(session, self._worker_id, chosen, model)
        return chosen

    def _instead_of_chat(self, session: Session, row: JobRow, held: Collection[str]) -> str | None:
        """What the turn of a chat goes to: a job that chats kept waiting, or the chat that waits longest."""
        if self._chats.is_spent():
            owed = job_queue.behind_chats(session, row.model, row.priority, held)
            if owed is not None:
                return owed
        first = chat_batches.oldest(session, row.model, held=held)
        return None if first is None else first.job_id

    def _set_idle(self) -> None:
        """A worker that seemed busy for good would keep its job from being woken."""
        if self._is_shown_idle:
            return
        self._database.insist(
            lambda session: workers.set_idle(session, self._worker_id, self._model.name or ""),
            give_up=self._stop.is_set,
        )

    def _run(self, job_id: str) -> bool:
        """Returns whether the job may have work left that nobody runs."""
        current = self._prepared(job_id)
        if current is not None:
            self._chats.begins(is_chat=current.chat is not None)
        began, called = time.monotonic(), False
        while current is not None and not self._pauses.hold():
            with self._database.write() as session:
                # a pause or a deadline that came since is seen here at the latest
                if queue_pause.holds(session) or job_control.fail_overdue(session, job_id):
                    return False
                if current.owner in self._pauses.held_owners(session):
                    return False
                leases = self._claim(session, current)
                changes = not leases and _has_other_lines(session, current)
                if not leases and not changes:
                    with suppress(NotFound):  # deleted since
                        jobs.end_if_done(session, job_id)
                    return False
                helpers = 0 if called else self._helpers(session, current)
            if changes:
                current = self._prepared(job_id)
                continue
            for _ in range(helpers):
                self._broker.wake(job_id, current.priority)
            called = True
            if not self._run_unit(current, leases):
                return False  # where it has work left, the reconciler wakes it again
            if self._stop.is_set() or self._is_over(current, time.monotonic() - began):
                return True
        return False

    def _prepared(self, job_id: str) -> Slice | None:
        """The job, ready to be run; None where it cannot be, which has been told then."""
        try:
            return self._slices.prepare(job_id)
        except HeldElsewhere:
            logger.info("job %s is left to the worker that holds the model it is pinned to", job_id)
        except ServiceUnavailable as error:  # of the store that the dataset or a vector is read from
            self._pauses.outage.note(error)
        except ActographError as error:
            logger.warning("job %s cannot run: %s", job_id, error)
            with self._database.write() as session:
                jobs.fail(session, job_id, error)
        return None

    def _claim(self, session: Session, current: Slice) -> list[LeasedSample]:
        """The next unit: samples of the job, or of all chats that can be run with it."""
        count, seconds = current.units.size(), self._settings.lease_seconds
        if current.chat is None:
            lines = current.lines
            return samples.claim(
                session,
                current.job_id,
                worker_id=self._worker_id,
                count=count,
                lease_seconds=seconds,
                fits=None if lines is None else lambda stored: unit_key(stored) == lines,
            )
        return chat_batches.claim(
            session,
            current.model,
            current.chat,
            held=self._pauses.held_owners(session),
            worker_id=self._worker_id,
            count=count,
            lease_seconds=seconds,
        )

    def _helpers(self, session: Session, current: Slice) -> int:
        """How many idle workers of this model to call to the samples that are left.

        Everyone who comes calls two more, so that a thousand are at work after ten rounds.
        """
        if not samples.is_any_pending(session, current.job_id):
            return 0
        return min(CALLED_AT_ONCE, routing.idle_holders(session, current.model))

    def _is_over(self, current: Slice, seconds: float) -> bool:
        """Whether a slice that has lasted so long gives way: to its end, or to a job that waits."""
        if seconds > self._settings.slice_seconds:
            return True
        with self._database.read() as session:
            near = routing.within_reach(session, current.model, self._may_load)
            held = self._pauses.held_owners(session)
            if job_queue.more_urgent_waits(session, current.job_id, current.priority, near, held=held):
                return True
            if current.chat is not None and self._chats_give_way(session, current, held):
                return True
            late = seconds > self._settings.turn_seconds
            return late and turns.another_waits(session, current.job_id, held)

    def _chats_give_way(self, session: Session, current: Slice, held: Collection[str]) -> bool:
        """To a chat that has waited longer and cannot share their batch, or to a job that had no turn."""
        first = chat_batches.oldest(session, current.model, held=held)
        if first is not None and first.key != current.chat:
            return True
        return self._chats.is_spent() and (
            job_queue.behind_chats(session, current.model, current.priority, held) is not None
        )

    def _run_unit(self, current: Slice, leases: Sequence[LeasedSample]) -> bool:
        """Returns whether to go on: not where the store is away, or the job has ended with this unit."""
        if current.refused is not None:
            refused = [Outcome(lease=lease, error=current.refused) for lease in leases]
            return self._store_unit(current, refused)
        keeper = LeaseKeeper(
            self._database,
            leases,
            self._stop,
            lease_seconds=self._settings.lease_seconds,
            stall_seconds=self._settings.stall_seconds,
            end_process=self._end_process,
        )
        with keeper:
            outcomes = current.units.run(leases, keeper)
        self._models.batch_memory = current.units.batch_memory
        if outcomes is None:
            self._database.insist(lambda session: _give_back(session, leases), give_up=self._stop.is_set)
            return True
        return self._store_unit(current, outcomes)

    def _store_unit(self, current: Slice, outcomes: Sequence[Outcome]) -> bool:
        """Commit a unit; returns as `_run_unit` does."""
        # a load is no part of what a sample takes
        before = max(self._measured_to, self._model.changed_at)
        self._measured_to = time.monotonic()
        took = self._measured_to - before

        def store(session: Session) -> Committed:
            done = commit_unit(session, outcomes, current.units.provenance, took, worker_id=self._worker_id)
            if done.is_end and current.chat is None:
                # a transaction of its own would cost a small job as much as its claim
                workers.set_idle(session, self._worker_id, self._model.name or "")
            return done

        done = self._database.insist(store, give_up=self._stop.is_set)
        # the slice of one chat goes on to the next
        is_end = done.is_end and current.chat is None
        self._is_shown_idle = is_end
        for outcome in done.lost:
            if outcome.recorded is not None:
                # what cannot be removed now is swept later: its sample has another session
                with suppress(ServiceUnavailable, OSError):
                    self._store.delete_prefix(session_prefix(outcome.recorded.session_id))
        if done.outage is None:
            self._pauses.outage.is_over()
            return not is_end
        self._pauses.outage.note(done.outage)
        return False


def _has_other_lines(session: Session, current: Slice) -> bool:
    """Whether a batch goes on with lines that cannot be run with those so far."""
    if current.lines is None or jobs.status_of(session, current.job_id) not in jobs.ACTIVE:
        return False
    return samples.next_input(session, current.job_id) is not None


def _give_back(session: Session, leases: Sequence[LeasedSample]) -> None:
    samples.release(session, leases)
    samples.give_back(session, leases)
    for job_id in sorted({lease.job_id for lease in leases}):
        if jobs.status_of(session, job_id) is not None:
            jobs.end_if_done(session, job_id)
