"""Several API processes and workers in the threads of one process, on one index and one store.

Each has a `Database` of its own, as a process has. The engine generates nothing and delivers rows of zeros,
the broker is a list in memory that loses messages, and statements are held up for a random moment, so that
transactions overlap where they seldom would. Whatever the database refuses is noted, also where the code
that asked would try again: a deadlock that is retried is still a deadlock.
"""

import logging
import random
import re
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import sqlalchemy as sa
from sqlalchemy import event

from actograph.contract.errors import ActographError, IdempotencyInFlight
from actograph.contract.models import HookInfo, LocationInfo, ModelStructure
from actograph.settings import Settings
from api.dependencies import Services
from api.served_models import ServedModels
from storage.artifacts.factory import open_store
from storage.index.database import Database
from storage.index.ids import new_worker_id
from storage.queue import workers
from storage.upkeep.reconcile import Reconciler
from tests.support.null_engine import NullEngine
from worker.drain.drain import Drain
from worker.engine.messages import Generation, Request, Rows, Sink
from worker.signals.stop_signal import StopSignal

MODEL = "null"
HOOK = "resid_post.0"
WIDTH = 4
HOST = "races"
#: two first requests with one key at once: what SQLite says, and the name of the index on Postgres
KEY_IS_UNIQUE = re.compile(r"(jobs|batches)\.idempotency_key|uq_(jobs|batches)_owner_idempotency_key")
#: a pid of a worker that is no more
DEAD_PID = -1


class Faults:
    """Recorder of violations; safe for use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._act = threading.local()
        self.found: list[str] = []
        #: act -> how often it was done, and how often it was refused as the service refuses things
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def note(self, what: str) -> None:
        with self._lock:
            self.found.append(what)

    def expect_in_flight(self) -> None:
        """The act of this thread lost against a request with the same key: it must end with a 409."""
        self._act.has_lost = True

    @contextmanager
    def guard(self, act: str) -> Iterator[None]:
        """Notes every error but those that the service would tell its client."""
        self._act.has_lost = False
        is_in_flight = False
        try:
            yield
            self.done[act] += 1
        except ActographError as error:
            self.refused[act] += 1
            is_in_flight = isinstance(error, IdempotencyInFlight)
        except Exception:  # noqa: BLE001 (any is a fault)
            self.note(f"{act}: {traceback.format_exc()}")
        if self._act.has_lost and not is_in_flight:
            self.note(f"{act}: its Idempotency-Key was in use, and it was not answered 409")


class FaultyLog(logging.Handler):
    """Notes what the service's threads log as errors."""

    def __init__(self, faults: Faults) -> None:
        super().__init__(level=logging.ERROR)
        self._faults = faults

    def emit(self, record: logging.LogRecord) -> None:
        self._faults.note(f"logged: {self.format(record)}")


class MemoryBroker:
    """Wakes workers of this process; every so often a message is lost."""

    def __init__(self, seed: int, lost_share: float = 0.05) -> None:
        self._random = random.Random(seed)
        self._lost_share = lost_share
        self._lock = threading.Lock()
        self._messages: deque[str] = deque()
        self.trouble: str | None = None

    def wake(self, model: str) -> bool:
        with self._lock:
            if self._random.random() >= self._lost_share:
                self._messages.append(model)
        return True

    def take(self) -> str | None:
        with self._lock:
            return self._messages.popleft() if self._messages else None

    def probe(self) -> bool:
        return True


class RowsEngine(NullEngine):
    """The null engine with one hook, of which it delivers a row for each token."""

    def __init__(self) -> None:
        super().__init__(MODEL)
        info = HookInfo(location="model.layers.0.output", width=WIDTH, dtype="float32")
        self.structure = self.structure.model_copy(
            update={
                "num_layers": 1,
                "hidden_size": WIDTH,
                "hooks": {HOOK: info},
                "module_locations": [info.location],
                "module_tensors": {info.location: LocationInfo(width=WIDTH, dtype="float32")},
            }
        )

    def answer(self, requests: Sequence[Request], sink: Sink | None) -> list[Generation]:
        for request in requests:
            if sink is not None and request.capture is not None:
                rows = np.zeros((len(request.prompt_ids), 4 * WIDTH), np.uint8)
                sink.write(request.key, {HOOK: Rows(0, (rows,), "F32")})
        return super().answer(requests, sink)


class RowsHolder:
    """Holds the engine; a load is done at once."""

    def __init__(self, on_loaded: Callable[[ModelStructure], None]) -> None:
        self.engine = RowsEngine()
        self.loads = 0
        self._on_loaded = on_loaded

    def holds(self, _name: str) -> bool:
        return True

    def engine_for(self, _name: str) -> RowsEngine:
        return self.engine

    def load(self, _name: str, _options: object) -> RowsEngine:
        self.loads += 1
        self._on_loaded(self.engine.structure)
        return self.engine


class WorkerHere:
    """One worker: its row, its drain, its heartbeats."""

    def __init__(self, world: "World") -> None:
        self.id = new_worker_id()
        self.database = world.open_database()
        self._pid = 1
        self.register()
        self._holder = holder = RowsHolder(self._show)
        self.drain = Drain(
            settings=world.settings,
            database=self.database,
            store=open_store(world.settings.effective_artifact_url),
            models=holder,  # type: ignore[arg-type]
            worker_id=self.id,
            stop=world.stop,
            may_load=(MODEL,),
        )
        self.show_ready()
        self.drain.load(MODEL)

    def show_ready(self) -> None:
        """The model is loaded."""
        self._holder.load(MODEL, None)

    def register(self) -> None:
        """As a worker does that starts: those of its host that are dead are buried."""
        with self.database.write() as session:
            workers.declare_lost(session, HOST, lambda pid, _started: pid == DEAD_PID)
            workers.register(
                session, self.id, hostname=HOST, pid=self._pid, pid_namespace=HOST, process_started=1,
                model=MODEL, served=[MODEL],
            )  # fmt: skip

    def _show(self, structure: ModelStructure) -> None:
        with self.database.write() as session:
            workers.set_ready(session, self.id, structure)
            workers.heartbeat(session, self.id, {"free_bytes": 1 << 40})


class World:
    """Use as a context manager."""

    def __init__(
        self, home: Path, database_url: str, *, seed: int, apis: int = 2, hold_up_ms: float = 1.0
    ) -> None:
        """
        Args:
            database_url: an index at the newest schema.
            hold_up_ms: a statement waits a random time up to this.
        """
        self.seed = seed
        self.faults = Faults()
        self.settings = Settings(
            home=home,
            database_url=database_url,
            broker_url="redis://127.0.0.1:1/0",  # nobody asks it
            model=f"{MODEL}=example/null",
            disk_floor_bytes=0,
            # a lease lapses now and then although its worker lives
            lease_seconds=1.0,
            slots=3,
            reconcile_seconds=3600,
        )
        self.broker = MemoryBroker(seed)
        self.stop = StopSignal()
        self.hold_up = hold_up_ms / 1000
        self._random = random.Random(seed)
        self._databases: list[Database] = []
        self._handler = FaultyLog(self.faults)
        self.apis = [self._services() for _ in range(apis)]
        self.healings = [Reconciler(self.settings, one.database, one.store) for one in self.apis]
        self.workers: list[WorkerHere] = []

    def __enter__(self) -> "World":
        self._excepthook, threading.excepthook = threading.excepthook, self._thread_failed
        logging.getLogger().addHandler(self._handler)
        return self

    def __exit__(self, *_: object) -> None:
        for database in self._databases:
            database.close()
        logging.getLogger().removeHandler(self._handler)
        threading.excepthook = self._excepthook

    def open_database(self) -> Database:
        """One more process on the index."""
        opened = Database(self.settings.effective_database_url)
        event.listen(opened.engine, "handle_error", self._refused)
        event.listen(opened.engine, "before_cursor_execute", self._wait)
        self._databases.append(opened)
        return opened

    def _services(self) -> Services:
        return Services(
            settings=self.settings,
            database=self.open_database(),
            store=open_store(self.settings.effective_artifact_url),
            broker=self.broker,  # type: ignore[arg-type]
            models=ServedModels(self.settings),
        )

    def _wait(self, *_: object) -> None:
        # most statements at once, some much later than the one before them
        if self.hold_up:
            time.sleep(self.hold_up * self._random.random() ** 4)

    def _refused(self, context: sa.engine.ExceptionContext) -> None:
        error = context.original_exception
        if isinstance(context.sqlalchemy_exception, sa.exc.IntegrityError) and KEY_IS_UNIQUE.search(
            str(error)
        ):
            self.faults.expect_in_flight()
            return
        self.faults.note(
            f"the database refused: {type(error).__name__}: {error}\n{context.statement}\n"
            + "".join(traceback.format_stack(limit=14)[:-2])
        )

    def _thread_failed(self, args: threading.ExceptHookArgs) -> None:
        lines = traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)
        self.faults.note(f"a thread ended: {''.join(lines)}")
