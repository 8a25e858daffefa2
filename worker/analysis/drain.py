"""Runs analysis jobs one by one: claim, run, commit. Jobs of models are never claimed here."""

import json
import logging
import os
from collections.abc import Callable

from pydantic import TypeAdapter
from sqlalchemy.orm import Session

from actograph.contract.errors import ActographError, JobEnded, LeaseLost, ServiceUnavailable
from actograph.contract.specs import ANALYSIS_QUEUE, AnyAnalysisSpec
from actograph.settings import Settings
from storage import samples
from storage.artifacts.store import ArtifactStore
from storage.files import files
from storage.index.database import Database
from storage.jobs import control, jobs
from storage.queue import pause, waiting, workers
from storage.samples import LeasedSample, SampleResult
from storage.tables.models import JobRow
from worker.analysis import state
from worker.analysis.context import Context, Stopped
from worker.analysis.registry import KINDS
from worker.analysis.results import Results, plain
from worker.analysis.state import StoredFile, StoredState
from worker.drain.lease import LeaseKeeper
from worker.drain.pauses import Pauses
from worker.sample.unforeseen import unforeseen
from worker.signals.stop_signal import StopSignal

logger = logging.getLogger(__name__)

_spec: TypeAdapter[AnyAnalysisSpec] = TypeAdapter(AnyAnalysisSpec)


class AnalysisDrain:
    """Runs the analysis jobs of the index."""

    def __init__(
        self,
        *,
        settings: Settings,
        database: Database,
        store: ArtifactStore,
        worker_id: str,
        stop: StopSignal,
        end_process: Callable[[int], None] = os._exit,
    ) -> None:
        self._settings = settings
        self._database = database
        self._store = store
        self._worker_id = worker_id
        self._stop = stop
        self._end_process = end_process
        self._pauses = Pauses(settings, database, store)

    def look(self) -> bool:
        """Run all analysis jobs that wait. Returns True if any was run."""
        has_run = False
        while not self._stop.is_set() and not self._pauses.hold() and self.run_next():
            has_run = True
        return has_run

    def run_next(self) -> bool:
        """Run the next job. Returns False if there is none."""
        with self._database.read() as session:
            held = self._pauses.held_owners(session)
            job = waiting.next_for(session, {ANALYSIS_QUEUE}, set(), held=held)
        if job is None:
            return False
        claimed = self._claim(job.id)
        if claimed is None:
            return False
        row, lease = claimed
        try:
            return self._run(row, lease)
        finally:
            self._database.insist(
                lambda session: workers.set_idle(session, self._worker_id, ANALYSIS_QUEUE),
                give_up=self._stop.is_set,
            )

    def _claim(self, job_id: str) -> tuple[JobRow, LeasedSample] | None:
        """Lease the job's sample; None if it cannot run now."""
        with self._database.write() as session:
            if pause.holds(session) or control.fail_overdue(session, job_id):
                return None
            leases = samples.claim(
                session,
                job_id,
                worker_id=self._worker_id,
                count=1,
                lease_seconds=self._settings.lease_seconds,
            )
            if not leases:
                return None
            jobs.start(session, job_id)
            workers.set_busy(session, self._worker_id, job_id)
            row = jobs.get(session, job_id)
            session.expunge(row)
            return row, leases[0]

    def _run(self, row: JobRow, lease: LeasedSample) -> bool:
        """Run a job and commit its result. Returns False if the store is away."""
        keeper = LeaseKeeper(
            self._database,
            [lease],
            self._stop,
            lease_seconds=self._settings.lease_seconds,
            stall_seconds=self._settings.stall_seconds,
            end_process=self._end_process,
        )
        stored: list[StoredFile] = []
        with keeper:
            try:
                results = KINDS[row.kind](self._context(row, keeper))
                stored = state.put(self._database, self._store, results.files, row.owner)
            except (Stopped, JobEnded):
                self._commit(lambda session: _release(session, lease))
                return True
            except ServiceUnavailable as error:
                self._pauses.outage.note(error)
                self._commit(lambda session: _release(session, lease))
                return False
            except ActographError as error:
                reason = error
            except Exception as error:  # noqa: BLE001 (it becomes the sample's reason)
                reason = unforeseen(error, f"while analysis {row.id} ran")
            else:
                self._complete(row, lease, results, stored)
                return True
        self._commit(lambda session: _fail(session, lease, reason))
        return True

    def _context(self, row: JobRow, keeper: LeaseKeeper) -> Context:
        return Context(
            job_id=row.id,
            spec=_spec.validate_python(row.spec),
            database=self._database,
            store=self._store,
            keeper=keeper,
            state=StoredState(self._database, self._store, row.id, row.owner),
            memory_bytes=self._settings.analysis_memory_bytes,
            checkpoint_seconds=self._settings.analysis_checkpoint_seconds,
        )

    def _complete(self, row: JobRow, lease: LeasedSample, results: Results, stored: list[StoredFile]) -> None:
        former = StoredState(self._database, self._store, row.id, row.owner)

        def complete(session: Session) -> None:
            if not samples.lock_jobs(session, [lease]):
                raise LeaseLost(f"job {row.id} was deleted")
            samples.complete(session, lease, _sample_result(results))
            former.remove(session)
            state.insert(session, stored, job_id=row.id, owner=row.owner, purpose=files.ANALYSIS)
            jobs.count_finished(session, row.id, completed=1, failed=0)
            jobs.end_if_done(session, row.id)

        try:
            self._commit(complete)
        except LeaseLost as error:
            logger.warning("%s", error)
            state.give_up(self._database, [one.id for one in stored])

    def _commit(self, write: Callable[[Session], None]) -> None:
        self._database.insist(write, give_up=self._stop.is_set)


def _sample_result(results: Results) -> SampleResult:
    return SampleResult(
        prompt="",
        completion=json.dumps(plain(results.summary), allow_nan=False),
        finish_reason="stop",
        prompt_tokens=0,
        generated_tokens=0,
        scores={},
        session_id=None,
    )


def _release(session: Session, lease: LeasedSample) -> None:
    samples.release(session, [lease])
    if jobs.status_of(session, lease.job_id) is not None:
        jobs.end_if_done(session, lease.job_id)


def _fail(session: Session, lease: LeasedSample, error: ActographError) -> None:
    if not samples.lock_jobs(session, [lease]):
        return
    try:
        samples.fail(session, lease, error)
    except LeaseLost as lost:
        logger.warning("%s", lost)
        return
    jobs.count_finished(session, lease.job_id, completed=0, failed=1)
    jobs.end_if_done(session, lease.job_id)
