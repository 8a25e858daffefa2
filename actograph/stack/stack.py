"""The service on one machine: start, supervise and stop broker, API and workers."""

import importlib.util
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from actograph.client import Client
from actograph.client.retries import is_loopback_host
from actograph.contract.errors import (
    ActographError,
    Conflict,
    InvalidRequest,
    ModelRefused,
    ServiceUnavailable,
)
from actograph.contract.resources import Worker, WorkerStatus
from actograph.settings import Settings
from actograph.stack import devices, redis_server
from actograph.stack.ports import free_port, is_free
from actograph.stack.processes import Child, Program, Supervisor, describe
from actograph.stack.stop_signals import StopSignals

WORKER_STOP_SECONDS = 20.0
API_STOP_SECONDS = 5.0
REDIS_STOP_SECONDS = 10.0
REDIS_START_SECONDS = 60.0
MIGRATE_SECONDS = 300.0
_TICK_SECONDS = 0.1
_POLL_SECONDS = 0.02
_PROBE_SECONDS = 0.25
_PATIENCE_SECONDS = 30.0
_ASK_SECONDS = 5.0
#: prefixes of environment variables that these programs do not receive
_NOT_FOR_BROKER = ("ACTOGRAPH_", "AWS_", "HF_")
_NOT_FOR_WORKERS = ("ACTOGRAPH_API_KEYS",)
T = TypeVar("T")
_LIVE = (WorkerStatus.READY, WorkerStatus.BUSY)


#: modules of the programs and of their largest dependencies
_PROGRAM_MODULES = ("api", "worker", "fastapi", "celery", "torch", "nnsight")


class PortInUse(Conflict):
    """The port is in use."""

    code = "port_in_use"


@dataclass(frozen=True, kw_only=True)
class StackOptions:
    """Parts of the stack to run; `settings` has an absolute home folder and the address."""

    settings: Settings
    workers: int
    #: a broker that runs already; None starts one of our own
    broker_url: str | None

    @property
    def logs(self) -> Path:
        return self.settings.home / "logs"


class Stack:
    """Runs the service's programs until a stop signal comes.

    Args:
        report: takes one line at a time for the terminal.
        signals: counts the stop signals; the caller has entered it.
    """

    def __init__(self, options: StackOptions, report: Callable[[str], None], signals: StopSignals) -> None:
        self._options = options
        self._report = report
        self._signals = signals
        self._supervisor = Supervisor(report)
        self._started_at = time.time()
        settings = options.settings
        if not (settings.api_keys or is_loopback_host(settings.host) or _has_keys(settings)):
            raise InvalidRequest(
                f"host {settings.host} is not loopback and there are no API keys; create a key with "
                "`python -m api.keys create`, set ACTOGRAPH_API_KEYS, or omit --host"
            )
        if settings.port and not is_free(settings.host, settings.port):
            raise PortInUse(
                f"port {settings.port} on {settings.host} is in use or not permitted; "
                "choose another with --port (0: any free one)"
            )
        self._port = settings.port or free_port(settings.host)
        self._redis = redis_server.prepare(settings.home / "redis") if options.broker_url is None else None
        self._broker: Child | None = None
        self._api: Child | None = None
        self._workers: list[Child] = []
        self._probed_at = 0.0
        self._hinted_at = time.monotonic()
        # the supervisor has a key of its own: it cannot know keys that are created later
        self._key = secrets.token_hex(32)
        self._client = Client(self.url, self._key, timeout=_ASK_SECONDS, retries=0)

    @property
    def url(self) -> str:
        """URL of the service for clients on this machine."""
        host = self._options.settings.host
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://[{host}]:{self._port}" if ":" in host else f"http://{host}:{self._port}"

    @property
    def has_default_address(self) -> bool:
        """Whether clients find the service without ACTOGRAPH_URL."""
        return (
            self.url
            == Settings.model_construct(url="", port=Settings.model_fields["port"].default).effective_url
        )

    def run(self, on_ready: Callable[[], None]) -> None:
        """Start all programs, call `on_ready` once requests are served, supervise, and stop in order.

        Raises:
            ModelRefused: a worker could not load the model.
            CrashLoop: a program keeps dying.
            ServiceUnavailable: the broker or the database did not start.
        """
        try:
            self._start()
            announced = False
            while not self._signals.asked():
                self._supervisor.check()
                self._probe()
                if not announced and self._all_ready() and self._asks(self._client.ready):
                    announced = True
                    on_ready()
                time.sleep(_TICK_SECONDS)
            self._stop()
        finally:
            self._supervisor.kill_all()
            self._client.close()

    def _start(self) -> None:
        settings, logs = self._options.settings, self._options.logs
        if self._redis is not None:
            self._broker = self._supervisor.start(
                Program(
                    name="redis",
                    command=self._redis.command,
                    environment=_without(os.environ, _NOT_FOR_BROKER),
                    log=logs / "redis.log",
                    stop_seconds=REDIS_STOP_SECONDS,
                )
            )
            self._await_broker(self._broker)
        if self._signals.asked():
            return
        self._migrate()
        if self._signals.asked():
            return
        self._api = self._supervisor.start(
            Program(
                name="api",
                command=[sys.executable, "-m", "api"],
                environment=self._environment({"ACTOGRAPH_SUPERVISOR_KEY": self._key}),
                log=logs / "api.log",
                stop_seconds=API_STOP_SECONDS,
            )
        )
        cards = devices.count_cards()
        chosen = devices.assign(settings.device, self._options.workers, cards)
        if 0 < cards < len(chosen) and "auto" in settings.device:
            self._report(f"{len(chosen)} workers share {cards} GPU; each holds the model once")
        for number, device in enumerate(chosen, start=1):
            program = Program(
                name=f"worker-{number}",
                command=[sys.executable, "-m", "worker"],
                environment=_without(self._environment({"ACTOGRAPH_DEVICE": device}), _NOT_FOR_WORKERS),
                log=logs / f"worker-{number}.log",
                stop_seconds=WORKER_STOP_SECONDS,
            )
            self._workers.append(self._supervisor.start(program))

    def _await_broker(self, broker: Child) -> None:
        """Wait until the broker has loaded its data."""
        assert self._redis is not None
        deadline = time.monotonic() + REDIS_START_SECONDS
        while not self._redis.answers():
            self._supervisor.check()
            if self._signals.asked():
                return
            if time.monotonic() > deadline:
                raise ServiceUnavailable(
                    f"the broker did not answer within {REDIS_START_SECONDS:.0f} s; "
                    f"its log: {broker.program.log}"
                )
            time.sleep(_POLL_SECONDS)
        self._supervisor.mark_ready(broker)

    def _migrate(self) -> None:
        """Migrate the database to the newest schema. Raises ServiceUnavailable."""
        child = Child(
            Program(
                name="migrate",
                command=[sys.executable, "-m", "storage.migrate"],
                environment=self._environment(),
                log=self._options.logs / "migrate.log",
            ),
            self._report,
        )
        child.start()
        deadline = time.monotonic() + MIGRATE_SECONDS
        try:
            while (status := child.ended()) is None:
                if self._signals.asked():
                    return
                if time.monotonic() > deadline:
                    raise ServiceUnavailable(
                        f"the database was not migrated within {MIGRATE_SECONDS:.0f} s; "
                        "does another program use it?"
                    )
                time.sleep(_POLL_SECONDS)
        finally:
            while child.process is not None:
                child.kill()
                child.ended()
        if status != 0:
            lines = child.tail().splitlines() or [describe(status)]
            for line in lines[:-1]:
                self._report(line)
            raise ServiceUnavailable(f"the database could not be migrated: {lines[-1]}")

    def _environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Environment of a service process: that of this process, overridden by the settings."""
        settings = self._options.settings
        broker_url = self._redis.url if self._redis is not None else self._options.broker_url
        environment = {
            name: value
            for name, value in os.environ.items()
            # settings of clients
            if name not in ("ACTOGRAPH_URL", "ACTOGRAPH_API_KEY", "ACTOGRAPH_SUPERVISOR_KEY")
        }
        environment |= {
            "ACTOGRAPH_HOME": str(settings.home),
            "ACTOGRAPH_HOST": settings.host,
            "ACTOGRAPH_PORT": str(self._port),
            "ACTOGRAPH_API_PROCESSES": str(settings.api_processes),
            "ACTOGRAPH_BROKER_URL": broker_url or "",
            "ACTOGRAPH_MODEL": settings.model,
            "ACTOGRAPH_DATA_ROOTS": ",".join(settings.data_roots),
            "ACTOGRAPH_DTYPE": settings.dtype,
            "ACTOGRAPH_DEVICE": settings.device,
            "ACTOGRAPH_THREADS": str(settings.threads),
            "ACTOGRAPH_LOG_LEVEL": settings.log_level,
            # a folder named api or worker in the working directory must not be imported
            "PYTHONSAFEPATH": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
        }
        return environment | dict(more or {})

    def _probe(self) -> None:
        """Mark programs ready that do their work by now.

        Raises:
            ModelRefused: a worker that was never ready could not load the model.
        """
        if self._all_ready():
            self._hinted_at = time.monotonic()
            return
        if time.monotonic() < self._probed_at + _PROBE_SECONDS:
            return
        self._probed_at = time.monotonic()
        if self._broker is not None and not self._broker.ready and self._redis and self._redis.answers():
            self._supervisor.mark_ready(self._broker)
        if time.monotonic() > self._hinted_at + _PATIENCE_SECONDS:
            self._hinted_at = time.monotonic()
            waiting = [child.program.name for child in self._supervisor.children if not child.ready]
            # the broker may have become ready above
            if waiting:
                self._report(f"still waiting for {', '.join(waiting)}; logs: {self._options.logs}")
        found = self._asks(self._client.workers.list)
        if found is None:
            return
        if self._api is not None and not self._api.ready and self._api.process is not None:
            self._supervisor.mark_ready(self._api)
        for child in self._workers:
            if not child.ready and any(_runs(child, worker) for worker in found):
                self._supervisor.mark_ready(child)
        if not all(child.was_ready for child in self._workers):
            self._look_for_failed_setup(found)

    def _look_for_failed_setup(self, found: list[Worker]) -> None:
        for worker in found:
            ours = worker.hostname == socket.gethostname() and worker.started_at >= int(self._started_at)
            if ours and worker.status is WorkerStatus.SETUP_FAILED:
                reason = worker.error.message if worker.error else "no reason was recorded"
                raise ModelRefused(f"the worker could not load the model: {' '.join(reason.split())}")

    def _all_ready(self) -> bool:
        return all(child.ready for child in self._supervisor.children)

    def _asks(self, question: Callable[[], T]) -> T | None:
        """Return the API's answer; None if it does not answer yet."""
        try:
            return question()
        except ActographError:
            return None

    def _stop(self) -> None:
        """Workers first, so that they can still write; the broker last, so that it keeps every message."""
        if any(child.process is not None for child in self._workers):
            self._report("stopping: workers finish their current batch (Ctrl-C again: stop at once)")
        stages: list[Sequence[Child | None]] = [self._workers, [self._api], [self._broker]]
        for stage in stages:
            self._supervisor.stop([child for child in stage if child is not None], self._signals.insisted)


def _without(environment: Mapping[str, str], prefixes: tuple[str, ...]) -> dict[str, str]:
    """Return an environment without the variables that start with a prefix."""
    return {name: value for name, value in environment.items() if not name.startswith(prefixes)}


def require_installed() -> None:
    """Raise ServiceUnavailable if only the client is installed."""
    for module in _PROGRAM_MODULES:
        if importlib.util.find_spec(module) is None:
            raise ServiceUnavailable(
                f"The service is not installed ({module} is missing). In a checkout, run: "
                "pip install -e '.[worker]'"
            )


def _runs(child: Child, worker: Worker) -> bool:
    """Whether a live worker of the index belongs to this child: its processes share the child's session."""
    if worker.status not in _LIVE or worker.hostname != socket.gethostname() or child.pid is None:
        return False
    try:
        return os.getsid(worker.pid) == child.pid
    except OSError:
        return False


def _has_keys(settings: Settings) -> bool:
    """Whether the index has API keys."""
    environment = os.environ | {"ACTOGRAPH_HOME": str(settings.home), "PYTHONSAFEPATH": "1"}
    asked = subprocess.run(
        [sys.executable, "-m", "api.keys", "check"],
        env=environment,
        capture_output=True,
        check=False,
    )
    return asked.returncode == 0
