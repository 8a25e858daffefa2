"""The drain: claim a unit, run it as one batch, commit it, claim the next.

One call works on one job for a slice of time and then lets the next message in the queue
have its turn, so that no message comes near the broker's visibility timeout. What is in the
database decides; a message that comes twice or late finds nothing to claim.
"""

import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from actograph.contract import batches, chat_job, hooks
from actograph.contract.capture_checks import check_capture
from actograph.contract.chat_job import batch_key
from actograph.contract.errors import ActographError, ServiceUnavailable, UnknownModel
from actograph.contract.model_loads import ModelLoadOptions
from actograph.contract.specs import CaptureSpec, EvaluationSpec, ExtractSpec
from actograph.dataset_rows import DatasetRow
from actograph.settings import Settings
from storage import (
    chat_batches,
    job_control,
    job_queue,
    jobs,
    model_loads,
    queue_pause,
    quotas,
    routing,
    samples,
    turns,
    workers,
)
from storage.artifacts.store import ArtifactStore
from storage.broker import Broker
from storage.database import Database, is_away
from storage.live_text import LiveTextWriter
from storage.models import JobRow
from storage.queue_state import disk_pause
from storage.sample_expansion import evaluation_samples, extract_samples
from storage.samples import LeasedSample, NewSample
from storage.session_files import session_prefix
from worker.chat_template import template_sha256, tokenizer_sha256
from worker.commit import Committed, commit_unit
from worker.datasets_of_job import DatasetReader
from worker.engine.engine import Engine
from worker.grouping import ModelGrouping
from worker.lease import LeaseKeeper
from worker.model_holder import ModelHolder
from worker.recording import Provenance
from worker.runners.batch import BatchRunner
from worker.runners.capture import CaptureRunner
from worker.runners.chat import ChatRunner
from worker.runners.evaluation import EvaluationRunner
from worker.runners.runner import Runner
from worker.segments import Markup
from worker.steering import Steering, steering_of
from worker.stop_signal import StopSignal
from worker.store_outage import StoreOutage
from worker.unit import UnitRunner

logger = logging.getLogger(__name__)

#: idle workers that one worker calls to its job when it begins
CALLED_AT_ONCE = 2

#: a worker that had nothing to do for longer was idle: that time is no sample's
IDLE_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Slice:
    """One job, ready to be run for a while."""

    job_id: str
    model: str
    priority: int
    owner: str | None
    units: UnitRunner
    #: what the chats of its units have in common; None where it is no chat
    chat: Mapping[str, Any] | None = None


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
        self._outage = StoreOutage(store)
        self._live = LiveTextWriter(settings.broker_url)
        self._loaded: str | None = None
        #: the last commit of this slice said that the worker has nothing to do
        self._is_shown_idle = False
        #: up to when the time of this slice was counted to its units
        self._measured_to = self._slice_ended_at = 0.0
        self._datasets = DatasetReader(store, settings.data_roots)

    def load(self, model: str) -> None:
        """Load a model before the first job asks for it. Raises ModelRefused."""
        self._engine_for(model)

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
        if self._is_paused():
            return
        with self._database.write() as session:
            if jobs.status_of(session, job_id) not in jobs.ACTIVE:
                return
            row = jobs.get(session, job_id)
            held = self._held_owners(session)
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
            self._load_as_asked(row)
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
        if self._loaded not in (None, row.model):
            if routing.is_held(session, row.model):
                return None
            chosen = self._grouping.choose(
                job_queue.WaitingJob(row.id, row.priority, row.model),
                self._loaded,
                [job for job in job_queue.claimable(session, held) if job.kind != model_loads.KIND],
            )
            if chosen != row.id and self._loaded is not None:
                model = self._loaded
        # a sibling has the same model
        chosen = turns.next_job(session, chosen, self._worker_id, held)
        turns.begin(session, chosen)
        jobs.start(session, chosen)
        workers.set_busy(session, self._worker_id, chosen, model)
        return chosen

    def _load_as_asked(self, row: JobRow) -> None:
        """Change the model; where the new one is refused, go on with the one that was there."""
        previous, self._loaded = self._loaded, None
        refused: ActographError | None = None
        try:
            try:
                self._models.load(row.model, ModelLoadOptions.model_validate(row.spec))
                self._loaded = row.model
            except ActographError as error:
                # the frames of the error hold what was loaded, which must go before anything else comes
                error.__cause__ = error.__context__ = None
                refused = error.with_traceback(None)
            with self._database.write() as session:
                if refused is None:
                    model_loads.complete(session, row.id)
                else:
                    logger.warning("model %s is refused: %s", row.model, refused)
                    model_loads.fail(session, row.id, refused)
            if refused is not None and previous is not None:
                self._load_again(previous)
        finally:
            self._set_idle()

    def _set_idle(self) -> None:
        """A worker that seemed busy for good would keep its job from being woken."""
        if self._is_shown_idle:
            return
        self._database.insist(
            lambda session: workers.set_idle(session, self._worker_id, self._loaded or ""),
            give_up=self._stop.is_set,
        )

    def _load_again(self, model: str) -> None:
        try:
            self._engine_for(model)
        except ActographError as error:
            logger.error("model %s, which was there before, cannot be loaded again: %s", model, error)

    def _engine_for(self, model: str) -> Engine:
        # where the new model is refused, the old one is gone all the same
        held, self._loaded = self._loaded, None
        try:
            engine = self._models.engine_for(model)
        except UnknownModel:
            self._loaded = held
            raise
        self._loaded = model
        if held != model:
            self._measured_to = time.monotonic()  # a load is no part of what a sample takes
        return engine

    def _run(self, job_id: str) -> bool:
        """Returns whether the job may have work left that nobody runs."""
        try:
            current = self._prepare(job_id)
        except ServiceUnavailable as error:  # of the store that the dataset or a vector is read from
            self._outage.note(error)
            return False
        except ActographError as error:
            logger.warning("job %s cannot run: %s", job_id, error)
            with self._database.write() as session:
                jobs.fail(session, job_id, error)
            return False
        began, called = time.monotonic(), False
        while not self._is_paused():
            with self._database.write() as session:
                # a pause or a deadline that came since is seen here at the latest
                if queue_pause.holds(session) or job_control.fail_overdue(session, job_id):
                    return False
                if current.owner in self._held_owners(session):
                    return False
                leases = self._claim(session, current)
                if not leases:
                    if jobs.status_of(session, job_id) is not None:
                        jobs.end_if_done(session, job_id)
                    return False
                helpers = 0 if called else self._helpers(session, current)
            for _ in range(helpers):
                self._broker.wake(job_id, current.priority)
            called = True
            if not self._run_unit(current, leases):
                return False  # where it has work left, the reconciler wakes it again
            if self._stop.is_set() or self._is_over(current, time.monotonic() - began):
                return True
        return False

    def _claim(self, session: Session, current: Slice) -> list[LeasedSample]:
        """The next unit: samples of the job, or of all chats that can be run with it."""
        count, seconds = current.units.size(), self._settings.lease_seconds
        if current.chat is None:
            return samples.claim(
                session, current.job_id, worker_id=self._worker_id, count=count, lease_seconds=seconds
            )
        return chat_batches.claim(
            session,
            current.model,
            current.chat,
            held=self._held_owners(session),
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
            held = self._held_owners(session)
            if job_queue.more_urgent_waits(session, current.job_id, current.priority, near, held=held):
                return True
            late = seconds > self._settings.turn_seconds
            return late and turns.another_waits(session, current.job_id, held)

    def _is_paused(self) -> bool:
        reason = disk_pause(self._store, self._settings.disk_floor_bytes)
        if reason is not None:
            logger.warning("nothing new is begun: %s", reason)
            return True
        if self._outage.holds():
            return True
        with self._database.read() as session:
            full = quotas.read(session, self._settings).pause()
            if full is not None:
                logger.warning("nothing new is begun: %s", full)
            return full is not None or queue_pause.holds(session)

    def _held_owners(self, session: Session) -> list[str]:
        """Owners at their quota; nothing of theirs is begun."""
        limits = quotas.read(session, self._settings)
        held = limits.paused_owners()
        for owner in held:
            logger.info("nothing of this owner is begun: %s", limits.owner_pause(owner))
        return held

    def _prepare(self, job_id: str) -> Slice:
        """Load the model if need be, read what the spec names, resolve its hooks.

        Raises:
            ActographError: the job cannot be run at all.
        """
        with self._database.read() as session:
            row = jobs.get(session, job_id)
        engine = self._engine_for(row.model)
        runner = self._runner(row, engine)
        with self._database.read() as session:
            steering = steering_of(session, row.spec, row.model, engine)
        provenance = self._provenance(row, engine, runner, steering)
        units = UnitRunner(
            settings=self._settings,
            store=self._store,
            engine=engine,
            runner=runner,
            provenance=provenance,
            steering=steering,
            time_limit=row.spec.get("sample_timeout_seconds") or None,
            live=self._live if row.kind == chat_job.KIND else None,
        )
        return Slice(
            job_id=job_id,
            model=row.model,
            priority=row.priority,
            owner=row.owner,
            units=units,
            chat=batch_key(row.spec) if row.kind == chat_job.KIND else None,
        )

    def _runner(self, row: JobRow, engine: Engine) -> Runner:
        if row.kind == "extract" and row.total is None:
            extract = ExtractSpec.model_validate(row.spec)
            self._insert_samples(row, lambda: extract_samples(extract, self._datasets.texts(extract)))
        if row.kind == batches.KIND:
            return BatchRunner(row.spec, engine.model.tokenizer, engine.structure)
        if row.kind == chat_job.KIND:
            return ChatRunner(row.spec, engine.model.tokenizer, engine.structure)
        if row.kind != "evaluation":
            return CaptureRunner(row.spec, engine.model.tokenizer, engine.structure.context_length)
        spec = EvaluationSpec.model_validate(row.spec)
        if row.total is None:
            self._insert_samples(row, lambda: evaluation_samples(spec, self._rows(spec)))
        return EvaluationRunner(spec, engine.model.tokenizer, self._datasets.fewshot_pool(spec))

    def _rows(self, spec: EvaluationSpec) -> list[DatasetRow]:
        return self._datasets.rows(spec.dataset, spec.task, limit=spec.limit, offset=spec.offset)

    def _insert_samples(self, row: JobRow, read: Callable[[], Iterator[NewSample]]) -> None:
        """Insert the samples of a dataset that the API could not read."""
        found = list(read())
        with self._database.write() as session:
            current = jobs.get(session, row.id)
            if current.total is None:  # another worker may have been faster
                jobs.set_total(session, row.id, samples.insert(session, row.id, found))

    def _provenance(
        self, row: JobRow, engine: Engine, runner: Runner, steering: Steering
    ) -> Provenance | None:
        capture = CaptureSpec.model_validate(row.spec["capture"]) if row.spec["capture"] else None
        if capture is None or capture.mode == "off":
            return None
        names = hooks.expand(capture.points, capture.layers, capture.hooks, engine.structure)
        check_capture(capture, names, engine.structure)
        if row.hooks != names:
            with self._database.write() as session:
                jobs.set_hooks(session, row.id, names)
        return Provenance(
            structure=engine.structure,
            tokenizer_sha256=tokenizer_sha256(engine.model.tokenizer),
            template_sha256=template_sha256(engine.model.tokenizer),
            capture=capture,
            hooks=names,
            sampling=runner.sampling,
            markup=Markup(engine.model.tokenizer),
            steering=steering,
        )

    def _run_unit(self, current: Slice, leases: Sequence[LeasedSample]) -> bool:
        """Returns whether to go on: not where the store is away, or the job has ended with this unit."""
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
        before, self._measured_to = self._measured_to, time.monotonic()
        took = self._measured_to - before

        def store(session: Session) -> Committed:
            done = commit_unit(session, outcomes, current.units.provenance, took, worker_id=self._worker_id)
            if done.is_end and current.chat is None:
                # a transaction of its own would cost a small job as much as its claim
                workers.set_idle(session, self._worker_id, self._loaded or "")
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
            self._outage.is_over()
            return not is_end
        self._outage.note(done.outage)
        return False


def _give_back(session: Session, leases: Sequence[LeasedSample]) -> None:
    samples.release(session, leases)
    samples.give_back(session, leases)
    for job_id in sorted({lease.job_id for lease in leases}):
        if jobs.status_of(session, job_id) is not None:
            jobs.end_if_done(session, job_id)
