"""Choice of the next job, and the end of a slice in favour of another job."""

import time
from collections.abc import Collection, Sequence

from sqlalchemy.orm import Session

from actograph.contract import chat_job
from actograph.settings import Settings
from storage.jobs import jobs
from storage.queue import chat_batches, routing, turns, waiting, workers
from storage.tables.models import JobRow
from worker.drain.chat_share import ChatShare
from worker.drain.grouping import ModelGrouping
from worker.drain.job_models import JobModels
from worker.drain.slices import Slice


class JobChoice:
    """Chooses jobs for one worker."""

    def __init__(self, settings: Settings, model: JobModels, worker_id: str, may_load: Sequence[str]) -> None:
        self._settings = settings
        self._model = model
        self._worker_id = worker_id
        self._may_load = may_load
        self._grouping = ModelGrouping(settings.model_hold_seconds)
        self.chats = ChatShare(settings.turn_seconds)
        #: job id -> `time.monotonic` before which it is not chosen
        self._left: dict[str, float] = {}

    def next_job(self, session: Session, held: Collection[str]) -> waiting.WaitingJob | None:
        """The next job in the index for this worker."""
        own = {self._model.name} if self._model.name is not None else set()
        models = routing.within_reach(session, self._model.name, self._may_load)
        moment = time.monotonic()
        self._left = {job_id: until for job_id, until in self._left.items() if until > moment}
        return waiting.next_for(
            session, models, own.union(self._may_load), held=held, without=self._left.keys()
        )

    def leave(self, job_id: str, seconds: float) -> None:
        """Skip this job for so many seconds."""
        self._left[job_id] = max(self._left.get(job_id, 0.0), time.monotonic() + seconds)

    def begin(self, session: Session, row: JobRow, held: Collection[str]) -> str | None:
        """Begin this job, or one that runs before it. Returns the id of the begun job.

        Returns None if another worker now holds the job's model.
        """
        chosen, model = row.id, row.model
        turn = waiting.WaitingJob(row.id, row.priority, row.model, row.kind, row.identity_sha256)
        if self._model.held is not None and not self._model.held.fits(turn):
            if self._model.name != row.model and routing.is_held(session, row.model):
                return None
            chosen = self._grouping.choose(
                turn,
                self._model.held,
                [job for job in waiting.claimable(session, held) if job.kind != jobs.LOAD],
            )
            if chosen != row.id and self._model.name is not None:
                model = self._model.name
        elif row.kind == chat_job.CHAT:
            chosen = self._instead_of_chat(session, row, held) or row.id
        # a sibling has the same model
        chosen = turns.next_job(session, chosen, self._worker_id, held)
        turns.begin(session, chosen)
        jobs.start(session, chosen)
        workers.set_busy(session, self._worker_id, chosen, model)
        return chosen

    def is_over(self, session: Session, current: Slice, seconds: float, held: Collection[str]) -> bool:
        """Whether a slice of this length gives way to a waiting job."""
        near = routing.within_reach(session, current.model, self._may_load)
        if waiting.more_urgent_waits(session, current.priority, near, held=held):
            return True
        if current.chat is not None and self._chats_give_way(session, current, held):
            return True
        late = seconds > self._settings.turn_seconds
        return late and turns.another_waits(session, current.job_id, held)

    def _instead_of_chat(self, session: Session, row: JobRow, held: Collection[str]) -> str | None:
        """The job to run in a chat's turn: a job delayed by chats, or the oldest chat."""
        if self.chats.is_spent():
            owed = waiting.behind_chats(session, row.model, row.priority, held)
            if owed is not None:
                return owed
        first = chat_batches.oldest(session, row.model, held=held)
        return None if first is None else first.job_id

    def _chats_give_way(self, session: Session, current: Slice, held: Collection[str]) -> bool:
        """Whether an older chat that cannot share the batch waits, or a job that is owed a turn."""
        first = chat_batches.oldest(session, current.model, held=held)
        if first is not None and first.key != current.chat:
            return True
        return self.chats.is_spent() and (
            waiting.behind_chats(session, current.model, current.priority, held) is not None
        )
