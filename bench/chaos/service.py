"""Starts what is disturbed: `actograph up` on SQLite and files, or on Postgres and S3."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from actograph.client import Client
from actograph.stack.up import up_process
from storage.artifacts.factory import open_store
from storage.artifacts.local import STAGING
from storage.artifacts.s3 import S3Store
from storage.artifacts.store import ArtifactStore
from storage.index.database import Database
from tests.support.chaos.changes import MODEL
from tests.support.chaos.stack import Stack
from tests.support.processes import words_of
from tests.support.servers import s3
from tests.support.servers.faulty_proxy import FaultyProxy
from tests.support.servers.postgres import PostgresServer
from tests.support.servers.swift import SwiftServer

RECONCILE_SECONDS = 1.0
SLOW_SECONDS = 1.0
_SABOTEUR = Path(__file__).with_name("saboteur")


@dataclass(frozen=True, kw_only=True)
class Servers:
    """Backends of the service, which outlive it."""

    home: Path
    #: for the service
    environment: Mapping[str, str]
    database: Database
    #: reached without the proxy
    store: ArtifactStore
    #: where sessions are written before they are in place
    staging: Path
    postgres: PostgresServer | None = None
    proxy: FaultyProxy | None = None

    def leftovers(self) -> int:
        """Leftovers of killed writers."""
        return sum(1 for _ in self.staging.glob(f"**/{STAGING}*"))


@contextmanager
def servers(stack: str, home: Path) -> Iterator[Servers]:
    """The servers of a stack, with an empty index and an empty store. Raises servers.Unavailable."""
    if stack == "sqlite-files":
        database = Database(f"sqlite:///{home / 'actograph.db'}")
        artifacts = home / "artifacts"
        try:
            yield Servers(
                home=home,
                environment={},
                database=database,
                store=open_store(artifacts.as_uri()),
                staging=artifacts,
            )
        finally:
            database.close()
        return
    with ExitStack() as opened:
        postgres = PostgresServer(durable=True)
        postgres.create()
        opened.callback(postgres.remove)
        server = SwiftServer()
        server.create()
        opened.callback(server.remove)
        proxy = opened.enter_context(FaultyProxy(server.port, slow_seconds=SLOW_SECONDS))
        bucket, spool = server.new_bucket(), home / "spool"
        spool.mkdir(parents=True)
        before = dict(os.environ)
        os.environ.clear()
        os.environ.update(s3.environment(server.url, before))
        opened.callback(os.environ.update, before)
        opened.callback(os.environ.clear)
        database = Database(postgres.url)
        opened.callback(database.close)
        yield Servers(
            home=home,
            environment={
                "ACTOGRAPH_DATABASE_URL": postgres.url,
                "ACTOGRAPH_ARTIFACT_URL": f"s3://{bucket}/chaos",
                "AWS_ENDPOINT_URL_S3": proxy.url,
                "TMPDIR": str(spool),
                # less than two sessions: the others wait on the disk, which the faults fill
                "ACTOGRAPH_UPLOAD_MEMORY_BYTES": "262144",
            },
            database=database,
            store=S3Store(bucket, "chaos", spool=spool),
            staging=spool,
            postgres=postgres,
            proxy=proxy,
        )


@contextmanager
def service(
    behind: Servers,
    *,
    spec: Mapping[str, Any],
    model: Path,
    data: Path,
    workers: int,
    threads: int,
    lease_seconds: float,
    broker_down_seconds: float,
) -> Iterator[tuple[Stack, Client]]:
    """`actograph up` with the saboteur in all its processes, and a client that is patient."""
    home = behind.home
    home.mkdir(parents=True, exist_ok=True)
    full_file, clock_file = home / "disk-is-full", home / "clock"
    clock_file.write_text("0")
    environment = dict(os.environ) | {
        "ACTOGRAPH_LEASE_SECONDS": str(lease_seconds),
        "ACTOGRAPH_RECONCILE_SECONDS": str(RECONCILE_SECONDS),
        "PYTHONPATH": os.pathsep.join([str(_SABOTEUR), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "CHAOS_FULL": str(full_file),
        "CHAOS_DISK": str(behind.staging),
        "CHAOS_CLOCK": str(clock_file),
        **behind.environment,
    }
    options = [
        f"--model={MODEL}={model}", "--dtype=float32", f"--home={home}", "--port=0", f"--threads={threads}",
        f"--workers={workers}", f"--data-root={data}",
    ]  # fmt: skip
    with up_process(options, environment) as url, Client(url, retries=10) as client:
        (process,) = [p for p in psutil.Process().children() if f"--home={home}" in words_of(p)]
        yield (
            Stack(
                home=home,
                port=int(url.rpartition(":")[2]),
                process=process,
                database=behind.database,
                store=behind.store,
                lease_seconds=lease_seconds,
                full_file=full_file,
                clock_file=clock_file,
                client=client,
                spec=spec,
                broker_down_seconds=broker_down_seconds,
                postgres=behind.postgres,
                proxy=behind.proxy,
            ),
            client,
        )
