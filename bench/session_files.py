"""Cost of durable sessions beside a plain write, and of rows beside loading the whole file.

    python -m bench.session_files --json results.json

With `--s3-url s3://bucket/prefix` (server and credentials from the usual AWS variables) rows are read from
S3 too, beside fetching the whole object.

Every round measures all variants once, in a random order, on the same bytes in the same folder; what a
variant wrote is deleted and the disk left to settle before the next. Ratios are taken within each round;
reported are medians over the rounds, with quartiles.
"""

import argparse
import os
import random
import secrets
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from actograph.client.stored_session import open_folder
from actograph.contract.resources import SessionFile
from bench.marks import Mark, print_marks, write_result
from storage.artifacts.factory import open_store
from storage.artifacts.local import LocalStore
from storage.artifacts.store import ArtifactStore
from storage.sessions.manifest import MANIFEST_NAME, SessionManifest, StoredTensor
from storage.sessions.reader import open_session
from storage.sessions.writer import SINGLE_FILE, SessionReader, SessionWriter, TensorRows

HOOKS, ROWS, WIDTH = 6, 512, 1024  # 6 MiB of bfloat16: three layers x two points of a 0.6B model
WRITERS = 4  # as the worker has
SLICE_ROWS, SLICE_WIDTH, SLICE = 8192, 4096, 10  # a tensor of 64 MiB


def manifest(session_id: str, shapes: dict[str, tuple[int, int]], rows: int) -> SessionManifest:
    return SessionManifest(
        session_id=session_id,
        job_id="job_bench",
        sample_id="smp_bench",
        sample_index=0,
        model="bench",
        capture={},
        capture_sha256="0" * 64,
        dtype="model",
        prompt_tokens=rows,
        generated_tokens=1,
        seed=0,
        created_at=int(time.time()),
        tensors={hook: StoredTensor(shape=shape, dtype="BF16") for hook, shape in shapes.items()},
    )


def write_session(store: ArtifactStore, tensors: dict[str, np.ndarray[Any, Any]]) -> str:
    session_id = f"ses_{secrets.token_hex(16)}"
    shapes = {hook: (t.shape[0], t.shape[1]) for hook, t in tensors.items()}
    rows = max(shape[0] for shape in shapes.values())
    with SessionWriter(store, session_id) as writer:
        writer.write_shard([TensorRows(h, "BF16", shapes[h], 0, t) for h, t in tensors.items()])
        writer.finish(manifest(session_id, shapes, rows), range(rows + 1))
    return session_id


def write_plain(folder: Path, data: bytes, *, sync: bool) -> None:
    with (folder / f"plain-{secrets.token_hex(8)}").open("wb") as file:
        file.write(data)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def many(action: Callable[[], object], count: int, threads: int) -> Callable[[], object]:
    """`count` calls, spread over `threads`."""
    if threads == 1:
        return lambda: [action() for _ in range(count)]

    def spread() -> None:
        with ThreadPoolExecutor(threads) as pool:
            for future in [pool.submit(action) for _ in range(count)]:
                future.result()

    return spread


def summary(seconds: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(seconds, n=4)
    return {"median": middle, "q1": low, "q3": high}


def spread(row: dict[str, float]) -> str:
    return f"{row['median']:.2f} ({row['q1']:.2f} to {row['q3']:.2f})"


def bench_writing(home: Path, rounds: int, count: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 16, (HOOKS, ROWS, WIDTH), dtype=np.uint16)
    tensors = {f"resid_post.{i}": bits[i] for i in range(HOOKS)}
    data = bits.tobytes()
    store = LocalStore(home / "store")
    plain = home / "plain"
    variants: dict[str, tuple[int, Callable[[], object]]] = {
        "plain write": (1, lambda: write_plain(plain, data, sync=False)),
        "plain write + fsync": (1, lambda: write_plain(plain, data, sync=True)),
        "plain write, 4 threads": (4, lambda: write_plain(plain, data, sync=False)),
        "plain write + fsync, 4 threads": (4, lambda: write_plain(plain, data, sync=True)),
        "session, 1 thread": (1, lambda: write_session(store, tensors)),
        "session, 2 threads": (2, lambda: write_session(store, tensors)),
        "session, 4 threads": (4, lambda: write_session(store, tensors)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name, (threads, action) in random.sample(list(variants.items()), len(variants)):
            plain.mkdir()
            os.sync()
            elapsed = timed(many(action, count, threads))
            shutil.rmtree(plain)
            for found in list(store.list_prefixes("sessions")):
                store.delete_many({found.prefix: None})
            if number:  # the first round warms up
                seconds[name].append(elapsed)
    base = seconds["plain write"]
    synced = seconds["plain write + fsync"]
    return {
        name: {
            "mb_per_second": count * len(data) / 1e6 / statistics.median(taken),
            "seconds": summary(taken),
            "ratio_to_plain": summary([b / t for b, t in zip(base, taken, strict=True)]),
            "ratio_to_plain_fsync": summary([b / t for b, t in zip(synced, taken, strict=True)]),
        }
        for name, taken in seconds.items()
    }


def bench_slices(home: Path, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    whole = torch.randn(SLICE_ROWS, SLICE_WIDTH).bfloat16()
    torch.save(whole, home / "whole.pt")
    store = LocalStore(home / "store")
    session_id = write_session(store, {"resid_post.0": whole.view(torch.uint16).numpy()})
    folder = store.root / "sessions" / session_id
    warm = SessionReader(store, session_id)
    lazy = open_folder(folder)["resid_post.0"]
    first = SLICE_ROWS // 2
    stop = first + SLICE

    def load() -> Any:
        return torch.load(home / "whole.pt", weights_only=True)[first:stop]

    def load_mapped() -> Any:
        return torch.load(home / "whole.pt", weights_only=True, mmap=True)[first:stop].clone()

    expected = whole[first:stop].view(torch.uint16).numpy().tobytes()
    assert load().view(torch.uint16).numpy().tobytes() == expected
    assert warm.rows("resid_post.0", first, stop).data == expected
    variants: dict[str, Callable[[], object]] = {
        "torch.load, 64 MiB": load,
        "torch.load(mmap=True)": load_mapped,
        "SessionReader, new": lambda: SessionReader(store, session_id).rows("resid_post.0", first, stop),
        "SessionReader, kept": lambda: warm.rows("resid_post.0", first, stop),
        "open_folder + slice": lambda: open_folder(folder)["resid_post.0"][first:stop],
        "LazyTensor, kept": lambda: lazy[first:stop],
    }
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name, action in variants.items():
            elapsed = timed(action)
            if number:
                seconds[name].append(elapsed)
    base = seconds["torch.load, 64 MiB"]
    return {
        name: {
            "seconds": summary(taken),
            "ratio_to_torch_load": statistics.median(t / b for b, t in zip(base, taken, strict=True)),
        }
        for name, taken in seconds.items()
    }


def bench_s3(url: str, rounds: int) -> dict[str, Any]:
    """Ten rows of a 64 MiB tensor on S3: of a session never read before, and of one that is known."""
    store = open_store(url)
    bits = np.random.default_rng(0).integers(0, 1 << 16, (SLICE_ROWS, SLICE_WIDTH), dtype=np.uint16)
    session_id = write_session(store, {"resid_post.0": bits})
    try:
        key = f"sessions/{session_id}/{MANIFEST_NAME}"
        data = b"".join(store.stream(key))
        recorded = SessionFile(name=MANIFEST_NAME, bytes=len(data), sha256=sha256(data).hexdigest())
        first = SLICE_ROWS // 2

        def rows() -> bytes:
            reader = open_session(store, session_id, recorded)
            return reader.rows("resid_post.0", first, first + SLICE).data

        def new() -> bytes:
            reader = SessionReader(store, session_id, recorded=recorded)
            return reader.rows("resid_post.0", first, first + SLICE).data

        assert rows() == new() == bits[first : first + SLICE].tobytes()
        whole = f"sessions/{session_id}/{SINGLE_FILE}"
        variants: dict[str, Callable[[], object]] = {
            "S3, the whole object": lambda: sum(len(piece) for piece in store.stream(whole)),
            "S3 rows, session new": new,
            "S3 rows, session known": rows,
        }
        seconds: dict[str, list[float]] = {name: [] for name in variants}
        for number in range(rounds + 1):
            for name, action in random.sample(list(variants.items()), len(variants)):
                elapsed = timed(action)
                if number:
                    seconds[name].append(elapsed)
    finally:
        store.delete_many({f"sessions/{session_id}": None})
    base = seconds["S3, the whole object"]
    return {
        name: {
            "seconds": summary(taken),
            "ratio_to_whole": statistics.median(t / b for b, t in zip(base, taken, strict=True)),
        }
        for name, taken in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--folder", type=Path, help="where to write; default: the temporary folder")
    parser.add_argument("--s3-url", help="also read rows from S3, under this s3://bucket/prefix")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--sessions", type=int, default=24, help="sessions per round and variant")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        home = Path(name)
        writing = bench_writing(home, options.rounds, options.sessions)
        slices = bench_slices(home, options.rounds)
    remote = bench_s3(options.s3_url, options.rounds) if options.s3_url else {}
    print(f"{HOOKS * ROWS * WIDTH * 2 / 2**20:.0f} MiB sessions, {options.sessions} per round")
    print(f"{'':32}{'MB/s':>8}{'÷ plain write':>22}{'÷ plain write + fsync':>26}")
    for variant, row in writing.items():
        print(
            f"{variant:32}{row['mb_per_second']:8.0f}"
            f"{spread(row['ratio_to_plain']):>22}{spread(row['ratio_to_plain_fsync']):>26}"
        )
    print(f"\n{SLICE} rows of a 64 MiB tensor")
    print(f"{'':32}{'median µs':>12}{'q1':>10}{'q3':>10}{'÷ torch.load':>14}")
    for variant, row in slices.items():
        spent = {key: value * 1e6 for key, value in row["seconds"].items()}
        print(
            f"{variant:32}{spent['median']:12.0f}{spent['q1']:10.0f}{spent['q3']:10.0f}"
            f"{row['ratio_to_torch_load']:14.5f}"
        )
    if remote:
        print(f"\n{SLICE} rows of a 64 MiB tensor on S3")
        print(f"{'':32}{'median µs':>12}{'q1':>10}{'q3':>10}{'÷ whole':>14}")
    for variant, row in remote.items():
        spent = {key: value * 1e6 for key, value in row["seconds"].items()}
        print(
            f"{variant:32}{spent['median']:12.0f}{spent['q1']:10.0f}{spent['q3']:10.0f}"
            f"{row['ratio_to_whole']:14.5f}"
        )
    marks = marks_of(writing, slices)
    print()
    print_marks(marks)
    settings = {"rounds": options.rounds, "sessions": options.sessions}
    result = {"settings": settings, "writing": writing, "slices": slices, "s3": remote}
    write_result(options.json, result, marks)


def marks_of(writing: dict[str, Any], slices: dict[str, Any]) -> list[Mark]:
    """Sessions against plain files of the same durability, and a slice against loading all.

    A plain write without fsync ends in the page cache: it says how fast memory is, not the disk.
    """
    written = writing[f"session, {WRITERS} threads"]["ratio_to_plain_fsync"]
    return [
        Mark(
            name=f"session write throughput, {WRITERS} threads / a plain sequential write + fsync",
            measured=written["median"],
            at_least=0.8,
            quartiles=(written["q1"], written["q3"]),
        ),
        Mark(
            name="10-row slice of a 64 MiB tensor / torch.load of it",
            measured=slices["SessionReader, new"]["ratio_to_torch_load"],
            at_most=1 / 20,
        ),
    ]


if __name__ == "__main__":
    main()
