"""The drain of analyses: claim one, run it, commit its results, until none waits."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from actograph.contract.analyses import ANALYSIS, CompareSpec, LensSpec, OutliersSpec, ProbeSpec
from actograph.contract.errors import ActographError, ServiceUnavailable, package
from actograph.contract.job_specs import job_spec_adapter
from actograph.contract.models import ServedModel, parse_served
from actograph.settings import Settings
from storage.analyses import state
from storage.artifacts.store import ArtifactStore
from storage.index.database import Database, is_away
from storage.queue import claim, commit, leases, workers
from storage.queue.claim import Asking, HeldModel
from storage.queue.commit import SampleResult
from storage.queue.leases import LeasedSample
from storage.sessions import vectors
from storage.sessions.writer import session_prefix
from storage.tables.models import JobRow
from worker.analysis import comparisons, lens, outliers
from worker.analysis.run import SAVE_SECONDS, AnalysisInterrupted, AnalysisResults, AnalysisRun
from worker.analysis.stored_results import store_results
from worker.drain.held_leases import HeldLeases
from worker.drain.pauses import Pauses
from worker.sample.unforeseen import unforeseen
from worker.signals.hints import Hints
from worker.signals.stop_signal import StopSignal

logger = logging.getLogger(__name__)
T = TypeVar("T")


class AnalysisDrain:
    """Runs analyses one after the other."""

    def __init__(
        self,
        *,
        settings: Settings,
        database: Database,
        store: ArtifactStore,
        worker_id: str,
        stop: StopSignal,
        save_seconds: float = SAVE_SECONDS,
        hints: Hints | None = None,
    ) -> None:
        self._database, self._store = database, store
        self._worker_id, self._stop = worker_id, stop
        self._save_seconds = save_seconds
        self._hints = hints or Hints()
        #: of the running analysis
        self._held_leases: HeldLeases | None = None
        self._pauses = Pauses(settings, database, store, worker_id)
        self._served = [parse_served(text) for text in (settings.model, *settings.allowed_models) if text]
        #: True if the index may say that this worker holds a sample, although it runs none
        self._may_hold = False

    def check_leases(self, session: Session) -> None:
        """Ask whether the running sample is still the worker's own."""
        if self._held_leases is not None:
            self._held_leases.check(session)

    def look(self) -> bool:
        """Run all analyses that wait. Returns True if there was any."""
        count = 0
        try:
            while not self._stop.is_set() and not self._pauses.hold() and self._next():
                count += 1
        except DBAPIError as error:
            if not is_away(error):
                raise
            logger.warning("the database is unavailable; the analysis stops here: %s", error.orig)
        if count:
            self._insist(lambda session: workers.set_idle(session, self._worker_id, ANALYSIS))
        return count > 0

    def _next(self) -> bool:
        """Run the next analysis. Returns False if none waits."""
        if self._may_hold:
            with self._database.write() as session:
                leases.give_back_all(session, self._worker_id)
        held = HeldModel(ANALYSIS)
        with self._database.read() as session:  # most looks find nothing, and need no turn to write
            if claim.choose(session, Asking(worker_id=self._worker_id, held=held)) is None:
                self._may_hold = False
                return False
        self._may_hold = True
        asking = Asking(worker_id=self._worker_id, held=held, owners=self._pauses.held_owners())
        found = claim.claim(self._database, asking, lambda _: 1)
        if found is not None and found.samples:
            self._run(found.job, found.samples[0])
        self._may_hold = False
        return found is not None

    def _run(self, job: JobRow, lease: LeasedSample) -> None:
        # a fit of hours is no stall; the job's deadline ends it
        held_leases = HeldLeases(self._database, self._worker_id, self._stop, hints=self._hints)
        self._held_leases = held_leases
        held_leases.add([lease])
        run = AnalysisRun(
            database=self._database,
            store=self._store,
            lease=lease,
            owner=job.owner,
            must_end=lambda: self._stop.is_set() or held_leases.has_lost(lease),
            save_seconds=self._save_seconds,
        )
        with held_leases:
            ended, results = self._ended(run, job, lease)
        if ended is None:
            self._insist(lambda session: leases.give_back(session, [lease]))
            return
        if self._insist(lambda session: _commit(session, ended, job.owner, results)):
            self._insist(lambda session: state.drop(session, lease.id))
        elif ended.session is not None:
            # the reaper may have been here before the last file was stored
            with suppress(ServiceUnavailable, OSError):
                self._store.delete_many({session_prefix(ended.session.id): None})

    def _ended(
        self, run: AnalysisRun, job: JobRow, lease: LeasedSample
    ) -> tuple[commit.Ended | None, AnalysisResults | None]:
        """Run an analysis and store its files. Returns None if the sample is given back."""
        try:
            results = _analyse(run, job, self._served)
            new = store_results(self._store, lease, results)
        except AnalysisInterrupted:
            return None, None
        except ServiceUnavailable as error:
            self._pauses.outage.note(error)
            return None, None
        except DBAPIError:
            raise
        except ActographError as error:
            return commit.Ended(lease=lease, error=error), None
        except Exception as error:  # noqa: BLE001 (logged, and the reason of the failed sample)
            reason = unforeseen(error, f"while analysis {job.id} ran")
            return commit.Ended(lease=lease, error=reason), None
        self._pauses.outage.is_over()
        result = _sample_result(results, new.id)
        return commit.Ended(lease=lease, result=result, session=new), results

    def _insist(self, work: Callable[[Session], T]) -> T:
        return self._database.insist(work, give_up=self._stop.is_set)


def _analyse(run: AnalysisRun, job: JobRow, served: Sequence[ServedModel]) -> AnalysisResults:
    spec = job_spec_adapter.validate_python(job.spec)
    match spec:
        case OutliersSpec():
            return outliers.run(run, spec)
        case ProbeSpec():
            package("scikit-learn", "a probe", module="sklearn")
            # scikit-learn takes a second to import, and 100 MB
            from worker.analysis import probes

            return probes.run(run, spec)
        case CompareSpec():
            return comparisons.run(run, spec)
        case LensSpec():
            return lens.run(run, spec, served)
    raise ActographError(f"job {job.id} of kind {job.kind} is no analysis")


def _commit(session: Session, ended: commit.Ended, owner: str, results: AnalysisResults | None) -> bool:
    """Commit an outcome with its vectors. False if the lease is lost."""
    done = commit.commit(session, [ended], one_by_one=True)
    if done.kept:
        for new in results.vectors if results is not None and done.kept[0].error is None else ():
            about = new.metadata | {"job_id": ended.lease.job_id}
            vectors.insert(session, new.model_copy(update={"metadata": about}), owner=owner)
    return ended.lease.key not in done.lost


def _sample_result(results: AnalysisResults, session_id: str) -> SampleResult:
    return SampleResult(
        prompt="",
        completion=results.summary,
        finish_reason="stop",
        prompt_tokens=0,
        generated_tokens=0,
        scores={},
        session_id=session_id,
    )
