"""The service's real processes for benches: Redis, API and workers of any entry module."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from actograph.client import Client
from actograph.contract.errors import ActographError, ServiceUnavailable
from actograph.settings import Settings
from actograph.stack import redis_server
from actograph.stack.ports import free_port
from actograph.stack.processes import Child, Supervisor
from storage import migrate
from storage.index.database import Database

START_SECONDS = 120.0


class Service:
    """Runs while the context lasts. The database is migrated first; on Postgres it must be empty."""

    def __init__(
        self,
        home: Path,
        *,
        worker_module: str,
        workers: int = 1,
        apis: int = 1,
        database_url: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._home = home
        self._worker_module = worker_module
        self._workers = workers
        self.port = free_port("127.0.0.1")
        self._redis = redis_server.prepare(home / "redis")
        self.settings = Settings(home=home, database_url=database_url, broker_url=self._redis.url)
        self._environment = {
            **os.environ,
            "ACTOGRAPH_HOME": str(home),
            "ACTOGRAPH_DATABASE_URL": database_url,
            "ACTOGRAPH_BROKER_URL": self._redis.url,
            "ACTOGRAPH_PORT": str(self.port),
            "ACTOGRAPH_API_PROCESSES": str(apis),
            "PYTHONUNBUFFERED": "1",
            **(environment or {}),
        }
        self._supervisor = Supervisor(_report)
        self.database = Database(self.settings.effective_database_url)
        self.url = f"http://127.0.0.1:{self.port}"
        self.api: Child | None = None
        self.workers: list[Child] = []

    def __enter__(self) -> Self:
        try:
            self._start("redis", self._redis.command)
            migrate.upgrade(self.database)
            self.api = self._start("api", [sys.executable, "-m", "api"])
            self._start("upkeep", [sys.executable, "-m", "storage.upkeep"])
            for number in range(1, self._workers + 1):
                command = [sys.executable, "-m", self._worker_module]
                self.workers.append(self._start(f"worker-{number}", command))
            self._await()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._supervisor.kill_all()
        self.database.close()

    def _start(self, name: str, command: list[str]) -> Child:
        log = self._home / "logs" / f"{name}.log"
        return self._supervisor.start(Child(name, command, self._environment, log))

    def _await(self) -> None:
        """Until every worker holds its model."""
        deadline = time.monotonic() + START_SECONDS
        with Client(self.url, retries=0, timeout=5) as client:
            while True:
                self._supervisor.check()
                try:
                    ready = sum(w.status == "ready" for w in client.workers.list())
                    # a service without a worker is never ready
                    if ready == self._workers and (not self._workers or client.ready()):
                        return
                except ActographError:
                    pass
                if time.monotonic() > deadline:
                    raise ServiceUnavailable(f"the service did not start; logs: {self._home / 'logs'}")
                time.sleep(0.1)


def _report(line: str) -> None:
    sys.stderr.write(f"{line}\n")
