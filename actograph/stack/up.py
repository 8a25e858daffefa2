"""The service on one machine: start, supervise and stop broker, API and workers."""

import importlib.util
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from actograph.client import Client
from actograph.contract.errors import (
    ActographError,
    Conflict,
    InvalidRequest,
    ModelRefused,
    ServiceUnavailable,
)
from actograph.contract.operations import Worker
from actograph.loopback import is_loopback
from actograph.settings import Settings
from actograph.stack import redis_server
from actograph.stack.home import close_to_others, locked
from actograph.stack.launcher import launched
from actograph.stack.ports import free_port, is_free
from actograph.stack.processes import TAIL_LINES, Child, Supervisor, describe

REDIS_START_SECONDS = 60.0
MIGRATE_SECONDS = 300.0
_TICK_SECONDS = 0.2
#: modules of the programs and of their largest dependencies
_PROGRAM_MODULES = ("api", "worker", "fastapi", "celery", "torch", "nnsight")
#: prefixes of environment variables that these programs do not receive
_NOT_FOR_BROKER = ("ACTOGRAPH_", "AWS_", "HF_")
_NOT_FOR_WORKERS = ("ACTOGRAPH_API_KEYS",)
#: settings of clients
_OF_CLIENTS = ("ACTOGRAPH_URL", "ACTOGRAPH_API_KEY", "ACTOGRAPH_SUPERVISOR_KEY")
NVIDIA = Path("/proc/driver/nvidia/gpus")


def require_installed() -> None:
    """Raise ServiceUnavailable if only the client is installed."""
    for module in _PROGRAM_MODULES:
        if importlib.util.find_spec(module) is None:
            raise ServiceUnavailable(
                f"The service is not installed ({module} is missing). In a checkout, run: "
                "pip install -e '.[worker]'"
            )


def run(
    settings: Settings, workers: int, *, emit: Callable[[str], None], report: Callable[[str], None]
) -> bool:
    """Run the service until a stop signal. `emit` gets the line `ready: URL`, `report` all others.

    Returns True if a second signal ended it at once.

    Raises:
        ActographError: a program could not be started, or keeps dying.
    """
    require_installed()
    settings = settings.model_copy(update={"home": settings.home.expanduser().absolute()})
    signals: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda number, _: signals.append(number)) for number in numbers}
    try:
        with locked(settings.home):
            if (closed := close_to_others(settings.home)) is not None:
                report(closed)
            stack = Stack(settings, workers, emit, report, signals)
            report(f"starting on {settings.home}; the worker loads {settings.model}")
            stack.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return len(signals) > 1


class Stack:
    """The programs of a service. It stops in order at the first of `signals`, and at once at the second."""

    def __init__(
        self,
        settings: Settings,
        workers: int,
        emit: Callable[[str], None],
        report: Callable[[str], None],
        signals: list[int],
    ) -> None:
        self._settings = settings
        self._emit, self._report, self._signals = emit, report, signals
        self._logs = settings.home / "logs"
        self._supervisor = Supervisor(report)
        self._started_at = time.time()
        if not (settings.api_keys or is_loopback(settings.host) or _has_keys(settings)):
            raise InvalidRequest(
                f"host {settings.host} is not loopback and there are no API keys; create a key with "
                "`python -m api.keys create`, set ACTOGRAPH_API_KEYS, or omit --host"
            )
        if settings.port and not is_free(settings.host, settings.port):
            raise Conflict(
                f"port {settings.port} on {settings.host} is in use or not permitted; "
                "choose another with --port (0: any free one)"
            )
        self._port = settings.port or free_port(settings.host)
        self._devices = devices(settings.device, workers, count_cards())
        own_broker = not os.environ.get("ACTOGRAPH_BROKER_URL")
        self._redis = redis_server.prepare(settings.home / "redis") if own_broker else None
        self._broker: Child | None = None
        self._api: Child | None = None
        self._workers: list[Child] = []
        # the supervisor has a key of its own: it cannot know keys that are created later
        self._key = secrets.token_hex(32)
        self._client = Client(self.url, self._key, timeout=5, retries=0)

    @property
    def url(self) -> str:
        """URL of the service for clients on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._settings.host, self._settings.host)
        return f"http://[{host}]:{self._port}" if ":" in host else f"http://{host}:{self._port}"

    def run(self) -> None:
        """Start all programs, supervise them until a stop signal, and stop them in order.

        Raises:
            ModelRefused: a worker could not load the model.
            CrashLoop: a program keeps dying.
            ServiceUnavailable: the broker or the database did not start.
        """
        announced = False
        try:
            self._start()
            while not self._signals:
                self._supervisor.check()
                if self._ready() and not announced and _answer(self._client.ready):
                    announced = True
                    self._announce()
                time.sleep(_TICK_SECONDS)
            self._stop()
        finally:
            self._supervisor.kill_all()
            self._client.close()

    def _start(self) -> None:
        if self._redis is not None:
            environment = _without(os.environ, _NOT_FOR_BROKER)
            broker = self._child("redis", self._redis.command, environment, stop_seconds=10)
            self._broker = self._supervisor.start(broker)
            self._await_broker(self._redis)
        self._migrate()
        if self._signals:
            return
        environment = self._environment() | {"ACTOGRAPH_SUPERVISOR_KEY": self._key}
        self._api = self._supervisor.start(self._child("api", _module("api"), environment, stop_seconds=5))
        if 0 < count_cards() < len(self._devices) and "auto" in self._settings.device:
            self._report(f"{len(self._devices)} workers share {count_cards()} GPU; each holds the model once")
        for number, device in enumerate(self._devices, start=1):
            environment = _without(self._environment(), _NOT_FOR_WORKERS) | {"ACTOGRAPH_DEVICE": device}
            worker = self._child(f"worker-{number}", _module("worker"), environment)
            self._workers.append(self._supervisor.start(worker))

    def _await_broker(self, redis: redis_server.RedisServer) -> None:
        deadline = time.monotonic() + REDIS_START_SECONDS
        while not redis.answers() and not self._signals:
            self._supervisor.check()
            if time.monotonic() > deadline:
                raise ServiceUnavailable(
                    f"the broker did not answer within {REDIS_START_SECONDS:.0f} s; "
                    f"its log: {self._logs}/redis.log"
                )
            time.sleep(0.02)

    def _migrate(self) -> None:
        """Migrate the database to the newest schema. Raises ServiceUnavailable."""
        command = launched(_module("storage.migrate"), signal.SIGKILL)
        try:
            done = subprocess.run(
                command,
                env=self._environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                timeout=MIGRATE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ServiceUnavailable(
                f"the database was not migrated within {MIGRATE_SECONDS:.0f} s; does another program use it?"
            ) from None
        if done.returncode != 0:
            *lines, last = done.stdout.splitlines()[-TAIL_LINES:] or [describe(done.returncode)]
            for line in lines:
                self._report(line)
            raise ServiceUnavailable(f"the database could not be migrated: {last}")

    def _ready(self) -> bool:
        """Mark the programs that do their work by now. True if all do.

        Raises:
            ModelRefused: a worker that was never ready could not load the model.
        """
        children = self._supervisor.children
        if all(child.ready for child in children):
            return True
        if self._broker is not None and not self._broker.ready and self._redis and self._redis.answers():
            self._supervisor.mark_ready(self._broker)
        found = _answer(self._client.workers.list)
        if found is not None and self._api is not None and self._api.process is not None:
            self._supervisor.mark_ready(self._api)
        for child in self._workers:
            if not child.ready and any(_runs(child, worker) for worker in found or ()):
                self._supervisor.mark_ready(child)
        if not all(child.was_ready for child in self._workers):
            for worker in found or ():
                ours = worker.hostname == socket.gethostname() and worker.started_at >= int(self._started_at)
                if ours and worker.status == "setup_failed":
                    reason = worker.error.message if worker.error else "no reason was recorded"
                    raise ModelRefused(f"the worker could not load the model: {' '.join(reason.split())}")
        return all(child.ready for child in children)

    def _announce(self) -> None:
        self._emit(f"ready: {self.url}")
        self._report(f"logs: {self._logs}; stop with Ctrl-C")
        port = Settings.model_fields["port"].default
        if self.url != Settings.model_construct(url="", port=port).effective_url:
            self._report(f"for other commands: export ACTOGRAPH_URL={shlex.quote(self.url)}")

    def _stop(self) -> None:
        """Workers first, so that they can still write; the broker last, so that it keeps every message."""
        if any(child.process is not None for child in self._workers):
            self._report("stopping: workers finish their running samples (Ctrl-C again: stop at once)")
        for stage in (self._workers, [self._api], [self._broker]):
            children = [child for child in stage if child is not None]
            self._supervisor.stop(children, lambda: len(self._signals) > 1)

    def _child(
        self, name: str, command: list[str], environment: Mapping[str, str], stop_seconds: float = 20
    ) -> Child:
        return Child(name, command, environment, self._logs / f"{name}.log", stop_seconds)

    def _environment(self) -> dict[str, str]:
        """Environment of a service process: that of this process, overridden by the settings."""
        settings = self._settings
        inherited = {name: value for name, value in os.environ.items() if name not in _OF_CLIENTS}
        return inherited | {
            "ACTOGRAPH_HOME": str(settings.home),
            "ACTOGRAPH_HOST": settings.host,
            "ACTOGRAPH_PORT": str(self._port),
            "ACTOGRAPH_API_PROCESSES": str(settings.api_processes),
            "ACTOGRAPH_BROKER_URL": self._redis.url if self._redis else os.environ["ACTOGRAPH_BROKER_URL"],
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


def devices(device: str, workers: int, cards: int) -> list[str]:
    """Return the device of each worker.

    `device` is a torch device, several with commas, or `auto`. With `auto`, workers take the cards in turn;
    otherwise all would choose the first. Raises InvalidRequest for an empty name.
    """
    names = [name.strip() for name in device.split(",")]
    if not all(names):
        raise InvalidRequest(f"--device {device!r}: name devices as in cpu, cuda or cuda:0,cuda:1")
    if names == ["auto"] and cards > 1 and workers > 1:
        names = [f"cuda:{card}" for card in range(cards)]
    return [names[index % len(names)] for index in range(workers)]


def count_cards() -> int:
    """Count the NVIDIA cards visible to this process, without torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() not in ("", "-1")])
    return len(list(NVIDIA.iterdir())) if NVIDIA.is_dir() else 0


def _module(name: str) -> list[str]:
    return [sys.executable, "-m", name]


def _without(environment: Mapping[str, str], prefixes: tuple[str, ...]) -> dict[str, str]:
    """Return an environment without the variables that start with a prefix."""
    return {name: value for name, value in environment.items() if not name.startswith(prefixes)}


def _answer(question: Callable[[], Any]) -> Any:
    """Return the API's answer; None if it does not answer yet."""
    try:
        return question()
    except ActographError:
        return None


def _runs(child: Child, worker: Worker) -> bool:
    """Whether a live worker of the index belongs to this child: its processes share the child's session."""
    if worker.status not in ("ready", "busy") or worker.hostname != socket.gethostname() or child.pid is None:
        return False
    try:
        return os.getsid(worker.pid) == child.pid
    except OSError:
        return False


def _has_keys(settings: Settings) -> bool:
    """Whether the index has API keys."""
    environment = os.environ | {"ACTOGRAPH_HOME": str(settings.home), "PYTHONSAFEPATH": "1"}
    asked = subprocess.run([*_module("api.keys"), "check"], env=environment, capture_output=True, check=False)
    return asked.returncode == 0
