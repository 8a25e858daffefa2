"""Runs jobs one after the other and injects faults in mid-work."""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import psutil
import sqlalchemy as sa
from rich.console import Console

from actograph.client import Client
from actograph.contract.errors import ActographError
from actograph.contract.resources import JobStatus, ModelLoad, Sample, SampleStatus
from bench.chaos.report import Fault
from storage.tables.models import SampleRow
from tests.support.chaos.changes import AS_AT_FIRST, BROKER_DOWN, MODEL, RELOADS, delete_for_good
from tests.support.chaos.stack import Injected, NotMidWork, Stack, Strike, Stuck
from tests.support.processes import has_ended

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "top_p": 0.95, "seed": 11},
}
#: a service that makes no progress for so long will not recover by itself
PATIENCE_SECONDS = 120.0
ENDED = (SampleStatus.COMPLETED, SampleStatus.FAILED)


class Chaos:
    """One run against a started service."""

    def __init__(
        self,
        stack: Stack,
        client: Client,
        spec: dict[str, Any],
        faults: Mapping[str, tuple[Strike, int]],
        *,
        seed: int,
        jobs_at_once: int,
        gap_seconds: float,
    ) -> None:
        self._gap_seconds = gap_seconds
        self._faults = faults
        self._stack = stack
        self._client = client
        self._spec = spec
        self._random = random.Random(seed)
        self._jobs_at_once = jobs_at_once
        self._is_as_at_first = False  # the model that new jobs get
        self.injected: list[tuple[str, Injected]] = []
        #: sampling, job id
        self.jobs: list[tuple[str, str]] = []

    def undisturbed(self) -> dict[str, list[Sample]]:
        """The samples of each sampling, run in peace."""
        made = {name: self._submit(name) for name in SAMPLINGS}
        self._await(lambda: self._open(list(made.values())) == 0, "the undisturbed run did not end")
        return {name: list(self._client.jobs.get(job_id).samples()) for name, job_id in made.items()}

    def disturb(self, faults: int, seconds: float) -> None:
        """Inject so many faults into jobs that follow one another, or fewer within so many seconds, and
        wait for the end of the last job."""
        seen, deadline = 0, time.monotonic() + seconds
        for kind in self._kinds(faults):
            if time.monotonic() > deadline:
                break
            gap = self._random.uniform(0.0, self._gap_seconds)
            self._await(partial(self._has_progressed, seen), f"no progress before {kind!r}")
            time.sleep(gap)
            self.injected.append((kind, self._inject(kind)))
            seen = self._ended()
            Console(stderr=True).print(f"{len(self.injected)}/{faults} {kind}", highlight=False)
        self._await(lambda: self._open([i for _, i in self.jobs]) == 0, "the last jobs did not end")
        self._delete_for_good()

    def _delete_for_good(self) -> None:
        """Wait until nothing is left to be deleted; what is left after that is the audit's."""
        self._await(self._is_ready, "the API did not come back")
        for job_id in self._stack.deleted:
            delete_for_good(self._client, job_id)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._stack.undeleted() and time.monotonic() < deadline:
            time.sleep(0.2)

    def _kinds(self, count: int) -> list[str]:
        """Every kind once, in a random order, then at random by their weights."""
        names, weights = list(self._faults), [weight for _, weight in self._faults.values()]
        first = self._random.sample(names, k=len(names))
        return [*first, *self._random.choices(names, weights, k=max(0, count - len(first)))][:count]

    def faults(self) -> list[Fault]:
        """Recovery after each fault, from the index."""
        found = []
        with self._stack.database.read() as session:
            for kind, hit in self.injected:
                held = session.scalar(
                    sa.select(sa.func.max(SampleRow.finished_at)).where(SampleRow.id.in_(hit.waiting))
                )
                following = session.scalar(
                    sa.select(sa.func.min(SampleRow.finished_at)).where(SampleRow.finished_at > hit.at)
                )
                found.append(
                    Fault(
                        kind=kind,
                        at=hit.at,
                        in_hand=len(hit.in_hand),
                        progress_seconds=(following or float("inf")) - hit.at,
                        # a commit may have come between the look at the index and the blow
                        recovery_seconds=max(0.0, (held or float("inf")) - hit.at),
                    )
                )
        return found

    def longest_silence(self) -> float:
        """Seconds between two samples of the disturbed jobs that ended one after the other, at most."""
        statement = sa.select(SampleRow.finished_at).where(
            SampleRow.job_id.in_([job_id for _, job_id in self.jobs]), SampleRow.finished_at.is_not(None)
        )
        with self._stack.database.read() as session:
            times = [
                at for at in session.scalars(statement.order_by(SampleRow.finished_at)) if at is not None
            ]
        return max((after - before for before, after in pairwise(times)), default=float("inf"))

    def _inject(self, kind: str) -> Injected:
        strike, deadline = self._faults[kind][0], time.monotonic() + PATIENCE_SECONDS
        while True:
            # a job alone might end before the broker is back
            self._keep_busy(self._jobs_at_once + 1 if kind == BROKER_DOWN else self._jobs_at_once)
            # after `_keep_busy`, which may undo the reloads before
            self._is_as_at_first = self._is_as_at_first and kind not in RELOADS
            try:
                return strike(self._stack)
            except (NotMidWork, psutil.NoSuchProcess) as reason:  # the target may die of the fault before
                if time.monotonic() > deadline:
                    raise Stuck(f"{kind!r} found no target: {reason}") from None
                time.sleep(self._random.uniform(0.01, 0.05))

    def _submit(self, sampling: str) -> str:
        self._await(self._is_ready, "the API did not come back")
        self._load_as_at_first()
        changes = {"max_tokens": self._spec["sampling"]["max_tokens"]} | SAMPLINGS[sampling]
        return self._client.submit(self._spec | {"sampling": changes}).id

    def _load_as_at_first(self) -> None:
        """Undo the reloads: new jobs are to be as the undisturbed ones were."""
        asked: ModelLoad | None = None

        def is_loaded() -> bool:
            nonlocal asked
            try:
                if asked is None or asked.status in (JobStatus.FAILED, JobStatus.CANCELLED):
                    asked = self._client.models.load(MODEL, **AS_AT_FIRST)
                asked = self._client.models.get_load(asked.id)
            except ActographError:
                return False
            return asked.status is JobStatus.COMPLETED

        if not self._is_as_at_first:
            self._await(is_loaded, "the model was not loaded again as it was at first")
            self._is_as_at_first = True

    def _keep_busy(self, at_once: int | None = None) -> None:
        while self._open([job_id for _, job_id in self.jobs]) < (at_once or self._jobs_at_once):
            name = list(SAMPLINGS)[len(self.jobs) % len(SAMPLINGS)]
            self.jobs.append((name, self._submit(name)))

    def _has_progressed(self, seen: int) -> bool:
        self._keep_busy()
        return self._ended() > seen

    def _open(self, job_ids: Sequence[str]) -> int:
        """How many of these jobs have not ended."""
        with self._stack.database.read() as session:
            return sum(1 for status in _statuses(session, job_ids) if not status.is_terminal())

    def _ended(self) -> int:
        statement = sa.select(sa.func.count()).where(
            SampleRow.job_id.in_([job_id for _, job_id in self.jobs]), SampleRow.status.in_(ENDED)
        )
        with self._stack.database.read() as session:
            return int(session.execute(statement).scalar_one())

    def _is_ready(self) -> bool:
        try:
            return self._client.ready()
        except ActographError:
            return False

    def _await(self, condition: Callable[[], bool], otherwise: str) -> None:
        """Until `condition` holds; Stuck once no sample has ended for too long, or `up` is gone."""
        count, since = -1, time.monotonic()
        while not condition():
            if has_ended(self._stack.process):
                raise Stuck(f"{otherwise}: `actograph up` has ended by itself")
            if (ended := self._all_ended()) != count:
                count, since = ended, time.monotonic()
            if time.monotonic() - since > PATIENCE_SECONDS:
                raise Stuck(otherwise)
            time.sleep(0.03)

    def _all_ended(self) -> int:
        with self._stack.database.read() as session:
            statement = sa.select(sa.func.count()).where(SampleRow.status.in_(ENDED))
            return int(session.execute(statement).scalar_one())


def _statuses(session: Any, job_ids: Sequence[str]) -> Iterator[Any]:
    from storage.jobs import jobs

    for job_id in job_ids:
        status = jobs.status_of(session, job_id)
        if status is not None:
            yield status
