"""A drain whose S3 server is far away, or answers 503 for a while, beside the same drain with a fast one.

    python -m bench.slow_store [--samples 400] [--rate 20] [--latency 0.2] [--outage 60] [--rounds 3]

An engine without a model makes `--rate` samples a second, each with a session of `--kilobytes`. The store is
an S3 server on this machine, behind a proxy that lets every request wait for `--latency` seconds, or refuses
all of them for `--outage` seconds from a quarter of the drain on. Rounds take turns; the ratio is that of the
samples a second. No sample may be lost or generated twice, and files that wait for their upload stay within
ACTOGRAPH_UPLOAD_MEMORY_BYTES and ACTOGRAPH_UPLOAD_DISK_BYTES, here `--memory` and `--disk` megabytes.
"""

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
from rich.console import Console
from rich.table import Table

from actograph.contract.job_specs import CaptureJobSpec
from actograph.contract.models import HookInfo
from actograph.contract.resources import SampleStatus
from actograph.settings import Settings
from bench.marks import Mark, print_marks, write_result
from storage import migrate, samples
from storage.artifacts.s3 import S3Store
from storage.index.database import Database
from storage.index.ids import new_worker_id
from storage.queue import workers
from storage.sessions import sessions
from tests.support.engine_double import OneModel, answered, run_requests
from tests.support.null_engine import NullEngine
from tests.support.servers import s3
from tests.support.servers.faulty_proxy import FaultyProxy
from tests.support.servers.moto_server import MotoServer
from tests.support.submitting import insert
from worker.drain.drain import Drain
from worker.engine.messages import Generation, Request, Rows, RunStatistics, Sink
from worker.signals.stop_signal import StopSignal

MODEL, HOOK = "paced", "resid_post.0"
MIB = 1 << 20


class PacedEngine(NullEngine):
    """Makes so many samples a second, each with rows of `width` float32 numbers."""

    def __init__(self, rate: float, width: int) -> None:
        super().__init__(MODEL)
        self.slots = 8
        hook = HookInfo(location="layers.0.output", width=width, dtype="float32")
        self.structure = self.structure.model_copy(
            update={"hooks": {HOOK: hook}, "module_locations": [hook.location], "num_layers": 1}
        )
        self._rate, self._width = rate, width
        self.asked: Counter[str] = Counter()

    def run(self, **of_run: Any) -> RunStatistics:
        return run_requests(self.answer, slots=self.slots, **of_run)

    def answer(self, requests: Sequence[Request], sink: Sink | None) -> list[Generation]:
        assert sink is not None
        time.sleep(len(requests) / self._rate)
        for request in requests:
            self.asked[request.key.partition(":")[0]] += 1
            rows = np.zeros((len(request.prompt_ids), 4 * self._width), np.uint8)
            sink.write(request.key, {HOOK: Rows(0, (rows,), "F32", finite=True)})
        return [answered(request, [self._end]) for request in requests]


def drain(
    arguments: argparse.Namespace, home: Path, proxy: FaultyProxy, bucket: str, fault: str
) -> dict[str, Any]:
    """One job through one worker. Returns what came of it."""
    settings = Settings(home=home, upload_memory_bytes=arguments.memory * MIB, disk_floor_bytes=0)
    database = Database(f"sqlite:///{home}/index.db")
    migrate.upgrade(database)
    store = S3Store(
        bucket,
        spool=home / "spool",
        upload_memory_bytes=arguments.memory * MIB,
        upload_disk_bytes=arguments.disk * MIB,
    )
    engine = PacedEngine(arguments.rate, arguments.kilobytes * 256 // 16)
    inputs = [{"prompt": "how many are there of them " * 2 + str(i)} for i in range(arguments.samples)]
    job_id = insert(
        database,
        CaptureJobSpec.model_validate(
            {
                "kind": "capture",
                "model": MODEL,
                "inputs": inputs,
                "capture": {"hooks": [HOOK]},
                "sampling": {"max_tokens": 1},
            }
        ),
    )
    worker_id = new_worker_id()
    with database.write() as session:
        workers.register(session, worker_id, hostname="bench", pid=1, model=MODEL)
    one = Drain(
        settings=settings,
        database=database,
        store=store,
        models=OneModel(MODEL, engine),  # type: ignore[arg-type]
        worker_id=worker_id,
        stop=StopSignal(),
    )
    peak = {"memory": 0, "disk": 0, "sessions": 0}
    ended = threading.Event()

    def watch() -> None:
        broken_at = None
        while not ended.wait(0.02):
            peak["memory"] = max(peak["memory"], store.space.memory)
            peak["disk"] = max(peak["disk"], store.space.disk)
            peak["sessions"] = max(peak["sessions"], one.numbers()["sessions_to_store"])
            if fault != "outage":
                continue
            moment = time.monotonic()
            if broken_at is None and sum(engine.asked.values()) >= arguments.samples // 4:
                broken_at, proxy.mode = moment, "unavailable"
            elif broken_at is not None and moment > broken_at + arguments.outage:
                proxy.mode = "pass"

    proxy.mode = "slow" if fault == "latency" else "pass"
    watching = threading.Thread(target=watch)
    watching.start()
    begun = time.monotonic()
    states: list[str] = []
    while not states or SampleStatus.PENDING in states:
        one.look()
        with database.read() as session:
            states = [row.status for row in samples.find(session, job_id, limit=arguments.samples)[0]]
    seconds = time.monotonic() - begun
    ended.set()
    watching.join()
    proxy.mode = "pass"
    with database.read() as session:
        stored = sessions.totals(session, sessions.SessionFilter())
    prefixes = sum(1 for _ in store.list_prefixes("sessions"))
    database.close()
    return {
        "fault": fault,
        "seconds": seconds,
        "samples_per_second": arguments.samples / seconds,
        "mean_bytes": stored.bytes / max(1, stored.sessions),
        "lost": arguments.samples - states.count(SampleStatus.COMPLETED),
        "sessions_missing": abs(arguments.samples - stored.sessions) + abs(prefixes - stored.sessions),
        "generated_twice": abs(sum(engine.asked.values()) - arguments.samples),
        "peak_memory_bytes": peak["memory"],
        "peak_disk_bytes": peak["disk"],
        "peak_sessions": peak["sessions"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--rate", type=float, default=20.0, help="samples a second of the engine")
    parser.add_argument("--kilobytes", type=int, default=256, help="rows of a sample, about")
    parser.add_argument("--latency", type=float, default=0.2, help="seconds of each request")
    parser.add_argument("--outage", type=float, default=60.0, help="seconds of 503; 0: none")
    parser.add_argument("--memory", type=int, default=64, help="MiB of memory for uploads")
    parser.add_argument("--disk", type=int, default=256, help="MiB of disk for uploads")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    server = MotoServer()
    server.create()
    os.environ |= s3.environment(server.url, {})
    found: list[dict[str, Any]] = []
    try:
        for number in range(arguments.rounds):
            for fault in ("none", "latency", *(["outage"] if arguments.outage and not number else [])):
                bucket = server.new_bucket()
                with (
                    tempfile.TemporaryDirectory(prefix="actograph-slow-store-") as home,
                    FaultyProxy(server.port, slow_seconds=arguments.latency) as proxy,
                ):
                    os.environ["AWS_ENDPOINT_URL_S3"] = proxy.url
                    found.append(drain(arguments, Path(home), proxy, bucket, fault))
    finally:
        server.remove()
    table = Table("store", "samples/s", "KB/session", "lost", "twice", "memory MiB", "disk MiB", "waiting")
    for one in found:
        table.add_row(
            one["fault"],
            f"{one['samples_per_second']:.1f}",
            f"{one['mean_bytes'] / 1024:.0f}",
            str(one["lost"] + one["sessions_missing"]),
            str(one["generated_twice"]),
            f"{one['peak_memory_bytes'] / MIB:.1f}",
            f"{one['peak_disk_bytes'] / MIB:.1f}",
            str(one["peak_sessions"]),
        )
    Console().print(table, f"{os.cpu_count()} cores shared by all processes; load {os.getloadavg()[0]:.1f}")
    speed = {
        fault: [one["samples_per_second"] for one in found if one["fault"] == fault]
        for fault in ("none", "latency")
    }
    ratios = [slow / fast for slow, fast in zip(speed["latency"], speed["none"], strict=True)]
    marks = [
        Mark(name="samples/s with latency / without", measured=statistics.median(ratios), at_least=0.9),
        Mark(
            name="samples lost, or sessions that are missing",
            measured=sum(one["lost"] + one["sessions_missing"] for one in found),
            at_most=0,
        ),
        Mark(name="generated twice", measured=sum(one["generated_twice"] for one in found), at_most=0),
        Mark(
            name="MiB of temporary files",
            measured=max(one["peak_disk_bytes"] for one in found) / MIB,
            at_most=arguments.disk,
        ),
    ]
    print_marks(marks)
    write_result(arguments.json, {"runs": found, "ratios": ratios}, marks)
    return 0 if all(mark.met for mark in marks) else 1


if __name__ == "__main__":
    sys.exit(main())
