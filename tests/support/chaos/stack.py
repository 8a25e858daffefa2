"""The service under fire, seen from outside, and what a fault says of itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sa

from actograph.client import Client
from actograph.contract.resources import SampleStatus
from storage.artifacts.store import ArtifactStore
from storage.index import visible
from storage.index.database import Database
from storage.tables.models import JobRow, SampleRow, SessionRow, WorkerRow
from storage.upkeep import reaper
from tests.support.processes import is_broker, words_of
from tests.support.servers.faulty_proxy import FaultyProxy
from tests.support.servers.postgres import PostgresServer


class NotMidWork(Exception):
    """The target has nothing in hand just now; try again."""


class Stuck(Exception):
    """The drain does not go on by itself."""


@dataclass(frozen=True, kw_only=True)
class Outage:
    """Samples drained while the broker was down, beside an equal time before."""

    seconds: float
    samples: int
    samples_before: int

    @property
    def share(self) -> float:
        return self.samples / max(1, self.samples_before)


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A running service and the servers that it stands on."""

    home: Path
    #: of the API
    port: int
    #: of the `actograph up`
    process: psutil.Process
    database: Database
    store: ArtifactStore
    lease_seconds: float
    #: while it exists the disk is full; holds the seconds that one worker's clock is off
    full_file: Path
    clock_file: Path
    client: Client
    #: of the disturbed jobs
    spec: Mapping[str, Any]
    #: for how long the broker stays down where it is not to come back at once
    broker_down_seconds: float
    #: jobs that were to disappear, and what was drained without a broker
    deleted: list[str] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    #: None where the index is SQLite, and where the store is a folder
    postgres: PostgresServer | None = None
    proxy: FaultyProxy | None = None

    def program(self, module: str) -> psutil.Process:
        """The service's direct child that runs `python -m MODULE`. Raises NotMidWork."""
        for child in self.process.children():
            if words_of(child)[1:3] == ["-m", module]:
                return child
        raise NotMidWork(f"{module} is being started")

    def broker(self) -> psutil.Process:
        """The service's Valkey or Redis server. Raises NotMidWork."""
        for child in self.process.children():
            if is_broker(child):
                return child
        raise NotMidWork("the broker is being started")

    def leased(self) -> dict[str, list[str]]:
        """Worker id -> the samples that it holds."""
        statement = sa.select(SampleRow.worker_id, SampleRow.id).where(
            SampleRow.status == SampleStatus.LEASED
        )
        held: dict[str, list[str]] = {}
        with self.database.read() as session:
            for worker_id, sample_id in session.execute(statement):
                held.setdefault(worker_id or "", []).append(sample_id)
        return held

    def held(self) -> list[str]:
        """The samples that anybody holds, of jobs that nobody deletes."""
        held = [sample for samples in self.leased().values() for sample in samples]
        deleted = sa.select(SampleRow.id).where(SampleRow.job_id.in_(self.deleted))
        with self.database.read() as session:
            return [sample for sample in held if sample not in set(session.scalars(deleted))]

    def ended_between(self, begin: float, end: float) -> int:
        """Samples that ended in this time, Unix seconds."""
        statement = sa.select(sa.func.count()).where(
            SampleRow.finished_at >= begin, SampleRow.finished_at < end
        )
        with self.database.read() as session:
            return int(session.execute(statement).scalar_one())

    def undeleted(self) -> int:
        """Rows of deleted jobs that the index still has, and other rows that are to be removed now."""
        with self.database.read() as session, visible.hidden_too(session):
            left = int(reaper.is_any_due(session))
            for column in (JobRow.id, SampleRow.job_id, SessionRow.job_id):
                left += session.scalar(sa.select(sa.func.count()).where(column.in_(self.deleted))) or 0
        return left

    def busy_worker(self) -> tuple[str, psutil.Process]:
        """A worker with samples in hand, and its process, which hosts an engine. Raises NotMidWork."""
        held = self.leased()
        with self.database.read() as session:
            rows = session.execute(sa.select(WorkerRow.id, WorkerRow.pid).where(WorkerRow.id.in_(held))).all()
        for worker_id, pid in rows:
            try:
                return worker_id, psutil.Process(pid)
            except psutil.NoSuchProcess:
                continue
        raise NotMidWork("no worker has samples in hand")


def engine_of(worker: psutil.Process) -> psutil.Process:
    """The engine's process of a worker. Raises NotMidWork."""
    for child in worker.children():
        if words_of(child)[1:3] == ["-m", "worker.engine"]:
            return child
    raise NotMidWork("the engine is being started")


@dataclass(frozen=True, kw_only=True)
class Injected:
    """Target of a fault."""

    #: samples that may have to be run again because of it
    in_hand: list[str]
    #: samples that anybody held at that moment: recovery is over once all have ended
    waiting: list[str]
    #: Unix seconds from which recovery is counted
    at: float


Strike = Callable[[Stack], Injected]
