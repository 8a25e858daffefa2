"""Commits of outcomes to the index, under their leases: what has gathered, as one list."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from actograph.contract.errors import CaptureFailed, JobEnded, ServiceUnavailable
from storage.index.database import Database
from storage.queue import commit, leases
from storage.queue.commit import Ended, SampleResult
from worker.sample.outcome import Interrupted, Outcome

#: an outcome waits so long for others ...
GATHER_SECONDS = 0.1
#: ... or until there are so many
MOST_GATHERED = 16
_GIVEN_BACK = (ServiceUnavailable, JobEnded, Interrupted)


@dataclass(frozen=True, kw_only=True)
class CommitResult:
    """The result of a commit."""

    outcomes: Sequence[Outcome]
    #: ids of the sessions whose files must be removed
    lost_sessions: Sequence[str]
    #: whether any sample has ended
    is_any: bool
    #: the store's error, if samples were given back because of it
    outage: ServiceUnavailable | None


class Commits:
    """A thread that commits outcomes; use as a context manager, whose end commits the rest."""

    def __init__(
        self,
        database: Database,
        worker_id: str,
        *,
        stored: Callable[[CommitResult], None],
        give_up: Callable[[], bool],
    ) -> None:
        """
        Args:
            stored: called after each commit, on this thread.
            give_up: True if an unavailable database is waited for no longer.
        """
        self._database, self._worker_id = database, worker_id
        self._stored, self._give_up = stored, give_up
        self._gathered: list[Outcome] = []
        self._first_at = 0.0
        self._is_closing = False
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._measured_to = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="commits", daemon=True)

    def __enter__(self) -> "Commits":
        self._measured_to = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Commit the rest.

        Raises:
            DBAPIError: the database is unavailable and `give_up` returned True.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join()
        if self._error is not None:
            raise self._error

    @property
    def has_failed(self) -> bool:
        """Whether nothing can be committed any more; leaving the context raises the reason."""
        return self._error is not None

    def add(self, outcome: Outcome, *, at_once: bool = False) -> None:
        """Commit this outcome with others, or `at_once`."""
        with self._changed:
            moment = time.monotonic()
            if not self._gathered:
                self._first_at = moment
            if at_once:
                self._first_at = moment - GATHER_SECONDS
            self._gathered.append(outcome)
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while outcomes := self._next():
                before, self._measured_to = self._measured_to, time.monotonic()
                self._stored(self._store(outcomes, self._measured_to - before))
        except Exception as error:  # noqa: BLE001 (raised where the context ends)
            self._error = error

    def _next(self) -> list[Outcome]:
        """The outcomes of the next commit; none at the end."""
        with self._changed:
            while not self._is_closing and len(self._gathered) < MOST_GATHERED:
                waits = self._first_at + GATHER_SECONDS - time.monotonic() if self._gathered else None
                if waits is not None and waits <= 0:
                    break
                self._changed.wait(waits)
            outcomes, self._gathered = self._gathered, []
            return outcomes

    def _store(self, outcomes: Sequence[Outcome], seconds: float) -> CommitResult:
        """Commit outcomes; retry while the database is unavailable.

        A sample is given back if the store could not take it, if it was interrupted, or if its job has ended.

        Args:
            seconds: time since the last commit.
        """
        away = [o for o in outcomes if isinstance(o.error, _GIVEN_BACK)]
        ended = [_ended(o) for o in outcomes if not isinstance(o.error, _GIVEN_BACK)]
        recorded = {o.lease.key: o.session_id for o in outcomes if o.session_id}

        if away:
            returned = [o.lease for o in away]
            self._database.insist(lambda session: leases.give_back(session, returned), give_up=self._give_up)
        done = commit.store(self._database, ended, seconds=seconds, give_up=self._give_up)
        return CommitResult(
            outcomes=outcomes,
            lost_sessions=[recorded[key] for key in done.lost if key in recorded],
            is_any=bool(done.kept),
            outage=next((o.error for o in away if isinstance(o.error, ServiceUnavailable)), None),
        )


def _ended(outcome: Outcome) -> Ended:
    prompt, generation, scores = outcome.prompt, outcome.generation, outcome.scores
    if outcome.error is not None:
        return Ended(lease=outcome.lease, error=outcome.error, prompt=prompt.text if prompt else None)
    if prompt is None or generation is None or scores is None:
        return Ended(lease=outcome.lease, error=CaptureFailed("the sample has neither a result nor an error"))
    recorded, cached = outcome.recorded, outcome.cached_tokens
    tool_use, messages = outcome.tools or (None, ())
    result = SampleResult(
        prompt=prompt.text,
        completion=outcome.completion,
        finish_reason=generation.finish_reason,
        prompt_tokens=outcome.prompt_tokens,
        generated_tokens=outcome.generated_tokens,
        scores=scores,
        session_id=outcome.session_id,
        tool_use=tool_use,
        messages=messages,
        logprobs=outcome.logprobs,
        readouts=recorded.readouts if recorded else {},
    )
    new = outcome.results
    if recorded is not None and outcome.provenance is not None:
        new = recorded.as_new(outcome.lease, outcome.provenance, outcome.correct)
    return Ended(lease=outcome.lease, result=result, session=new, cached_tokens=cached)
