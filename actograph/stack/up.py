"""The service on one machine: start, supervise and stop broker, API and workers."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from actograph.client import Client
from actograph.contract.errors import ActographError, Conflict, InvalidRequest, ServiceUnavailable
from actograph.contract.operations import Worker
from actograph.process_identity import pid_namespace
from actograph.settings import Settings
from actograph.stack import redis_server
from actograph.stack.home import locked
from actograph.stack.launcher import launched
from actograph.stack.ports import free_port, is_free
from actograph.stack.processes import Child, Supervisor
from actograph.stack.programs import program, program_environment, require_installed

READY = "ready: "
_TICK_SECONDS = 0.2
NVIDIA = Path("/proc/driver/nvidia/gpus")
#: secrets that only the API knows
_NO_KEYS: dict[str, Any] = {"api_keys": (), "api_key": "", "supervisor_key": ""}
#: prefixes of environment variables that Redis does not receive
_NOT_FOR_REDIS = ("ACTOGRAPH_", "AWS_", "HF_")


@contextmanager
def up_process(arguments: Sequence[str], environment: Mapping[str, str]) -> Iterator[str]:
    """Run `actograph up` as a child of this process while the context lasts. Yields the URL of the service.

    The stderr of `up` is passed on. On Linux it gets SIGTERM when this process ends in any way.

    Raises:
        ServiceUnavailable: `up` ended before it was ready; its stderr says why.
    """
    command = launched([sys.executable, "-m", "actograph.cli.main", "up", *arguments], signal.SIGTERM)
    options: Any = {"env": environment, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        lines: Iterator[str] = iter(process.stdout or ())
        try:
            url = next((line.removeprefix(READY) for line in lines if line.startswith(READY)), None)
            if url is None:
                raise ServiceUnavailable("the service did not start; the lines above say why")
            yield url.strip()
        finally:
            process.terminate()
            process.wait()  # Popen does not wait for its program after Ctrl-C


def run(
    settings: Settings, workers: int, *, emit: Callable[[str], None], report: Callable[[str], None]
) -> bool:
    """Run the service until a stop signal. `emit` gets the line `ready: URL`, `report` all others.

    Returns True if a second signal ended it at once.

    Raises:
        ActographError: a program could not be started, or keeps dying.
    """
    require_installed()
    home = settings.home.expanduser().absolute()
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: signals.append(number))
    with locked(home):
        stack = Stack(settings.model_copy(update={"home": home}), workers, report, signals)
        report(f"starting on {home}; the worker loads {settings.model or 'the model of the first job'}")
        stack.run(emit)
    return len(signals) > 1


class Stack:
    """The programs of a service. It stops in order at the first of `signals`, and at once at the second."""

    def __init__(
        self, settings: Settings, workers: int, report: Callable[[str], None], signals: Sequence[int]
    ) -> None:
        host, port = settings.host, settings.port or free_port(settings.host)
        if not is_free(host, port):
            raise Conflict(
                f"cannot listen on port {port} of {host}: the port is in use or not permitted, or the host "
                "is not this machine; choose others with --port (0: any free one) and --host"
            )
        local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        self.url = f"http://[{local}]:{port}" if ":" in local else f"http://{local}:{port}"
        # the supervisor has a key of its own: it cannot know keys that are created later
        update = {"port": port, "supervisor_key": secrets.token_hex(32)}
        self._redis: redis_server.RedisServer | None = None
        if "broker_url" not in settings.model_fields_set or not settings.broker_url:
            self._redis = redis_server.prepare(settings.home / "redis")
            update["broker_url"] = self._redis.url
        self._settings = settings.model_copy(update=update)
        self._devices = devices(settings.device, workers, count_cards(), settings.tensor_parallel)
        self._report, self._signals = report, signals
        self._supervisor = Supervisor(report)
        self._workers: list[Child] = []
        self._client = Client(self.url, self._settings.supervisor_key, timeout=5, retries=0)

    def run(self, emit: Callable[[str], None]) -> None:
        """Start all programs, supervise them until a stop signal, and stop them in order.

        Raises:
            ServiceUnavailable: a program cannot run, such as a worker whose model cannot be loaded.
        """
        announced = False
        try:
            self._start()
            while not self._signals:
                if self._supervisor.check() and not announced:
                    announced = True
                    emit(f"{READY}{self.url}")
                    # only now, so that it takes no time from the first start
                    analysis = self._program("analysis", "worker.analysis", self._has_loaded, **_NO_KEYS)
                    self._workers.append(self._supervisor.start(analysis))
                    self._report(f"logs: {self._settings.home / 'logs'}; stop with Ctrl-C")
                    if self.url != Settings.model_construct().effective_url:
                        self._report(f"for other commands: export ACTOGRAPH_URL={self.url}")
                time.sleep(_TICK_SECONDS)
            self._stop()
        finally:
            self._supervisor.kill_all()
            self._client.close()

    def _start(self) -> None:
        if (redis := self._redis) is not None:
            log = self._settings.home / "logs" / "redis.log"
            known = {name: os.environ[name] for name in os.environ if not name.startswith(_NOT_FOR_REDIS)}
            self._supervisor.start(Child("redis", redis.command, known, log, lambda _: redis.answers()))
        self._migrate()
        if self._signals:
            return
        self._supervisor.start(self._program("api", "api", lambda _: self._registered() is not None))
        self._supervisor.start(self._program("upkeep", "storage.upkeep", lambda _: True, **_NO_KEYS))
        for number, device in enumerate(self._devices, start=1):
            changes = {"device": device, **_NO_KEYS}
            worker = self._program(f"worker-{number}", "worker", self._has_loaded, **changes)
            self._workers.append(self._supervisor.start(worker))

    def _migrate(self) -> None:
        """Migrate the database to the newest schema. Raises ServiceUnavailable."""
        migration = self._program("migrate", "storage.migrate", lambda _: False, **_NO_KEYS)
        migration.start()
        while (status := migration.ended()) is None and not self._signals:
            time.sleep(0.02)
        migration.kill()
        if status:
            *_, reason = migration.tail or [f"exit status {status}"]
            raise ServiceUnavailable(f"the database could not be migrated: {reason}; log: {migration.log}")

    def _registered(self) -> list[Worker] | None:
        """Return the workers in the index; None if the API does not answer."""
        try:
            return self._client.workers.list()
        except ActographError:
            return None

    def _has_loaded(self, pid: int) -> bool:
        """Whether a worker in the session of the process `pid` has loaded its model."""
        here = (socket.gethostname(), pid_namespace())
        for worker in self._registered() or ():
            if (worker.hostname, worker.pid_namespace) == here and worker.status in ("ready", "busy"):
                with suppress(OSError):  # a worker that has died since
                    if os.getsid(worker.pid) == pid:
                        return True
        return False

    def _stop(self) -> None:
        """Stop the workers first, so that they can still write."""
        if any(worker.pid for worker in self._workers):
            self._report("stopping: workers finish their running samples (Ctrl-C again: stop at once)")
        for children in (self._workers, self._supervisor.children):
            self._supervisor.stop(children, lambda: len(self._signals) > 1)

    def _program(self, name: str, module: str, is_ready: Callable[[int], bool], **changes: Any) -> Child:
        """Return a program of ours; `changes` are settings of this one."""
        environment = environment_of(self._settings.model_copy(update=changes))
        log = self._settings.home / "logs" / f"{name}.log"
        return Child(name, program(module), environment, log, is_ready)


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the environment of a program: that of this process, overridden by the settings."""
    variables = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    for name in settings.model_fields_set:
        value = getattr(settings, name)
        variables[f"ACTOGRAPH_{name.upper()}"] = ",".join(value) if isinstance(value, tuple) else str(value)
    return program_environment(**variables)


def devices(device: str, workers: int, cards: int, ranks: int = 1) -> list[str]:
    """Return the device of each worker.

    `device` is a torch device, several with commas, or `auto`. With `auto`, workers take the cards in turn;
    otherwise all would choose the first.

    Args:
        ranks: processes of each worker, which take the cards of their own numbers.

    Raises:
        InvalidRequest: a name is empty; or several ranks would not find their cards.
    """
    if ranks > 1 and (device != "auto" or workers > 1):
        raise InvalidRequest(
            f"--tensor-parallel {ranks} takes the first {ranks} GPUs for one worker: leave out --device and "
            "--workers. For further workers start `up` or `worker` once more with other CUDA_VISIBLE_DEVICES"
        )
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
