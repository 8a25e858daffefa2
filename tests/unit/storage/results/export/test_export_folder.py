"""The results folder as a stream: bounded memory, and logs of Inspect that can be made again byte by byte."""

import io
import tarfile
import threading
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from actograph.contract.job_specs import EvaluationSpec, job_spec_adapter
from evals.dataset_rows import DatasetRow
from storage.artifacts.local import LocalStore
from storage.index.database import Database
from storage.jobs import jobs
from storage.results.export import folder, plan
from storage.results.export.sample import StoredSample
from storage.samples.expansion import evaluation_samples
from storage.tables.models import SampleRow
from tests.support.submitting import insert

SAMPLES = 2000
PROMPT = "A prompt as long as one with examples. " * 100
SCORES = {"exact_match,strict-match": {"value": 1.0, "answer": "5"}}


@pytest.fixture
def database(sqlite: Database) -> Database:
    return sqlite


def finished_job(database: Database, count: int = SAMPLES) -> str:
    """The id of an evaluation whose samples have all ended."""
    spec = job_spec_adapter.validate_python(
        {"kind": "evaluation", "model": "demo", "dataset": {"path": "p.jsonl"}, "scorers": ["strict-match"]}
    )
    assert isinstance(spec, EvaluationSpec)
    rows = [DatasetRow(index=i, question=f"{i} + 5?", answer=f"#### {i + 5}") for i in range(count)]
    job_id = insert(database, spec, evaluation_samples(spec, rows))
    with database.write() as session:
        session.query(SampleRow).update(
            {
                "status": "completed",
                "prompt": PROMPT,
                "completion": "#### 5",
                "finish_reason": "stop",
                "prompt_tokens": 900,
                "generated_tokens": 4,
                "scores": SCORES,
            }
        )
    return job_id


def inflated(pieces: Iterable[bytes]) -> int:
    """Bytes of a whole gzip stream, of which little is held at once."""
    gzip, size = zlib.decompressobj(31), 0
    for piece in pieces:
        left = piece
        while left:
            size += len(gzip.decompress(left, 1 << 16))
            left = gzip.unconsumed_tail
    assert gzip.eof
    return size


def test_manifests_of_an_export_are_read_side_by_side(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, together = finished_job(database, 4), threading.Barrier(2)
    of = StoredSample.of.__func__  # type: ignore[attr-defined]

    def meet(cls: type[StoredSample], *given: Any) -> StoredSample:
        together.wait(60)
        held: StoredSample = of(cls, *given)
        return held

    monkeypatch.setattr(StoredSample, "of", classmethod(meet))
    assert inflated(
        folder.stream(plan.prepare(database, job_id, "meta"), database, LocalStore(tmp_path / "s"))
    )


@pytest.mark.soak
@pytest.mark.integration
def test_two_thousand_samples_are_never_held_at_once(database: Database, tmp_path: Path) -> None:
    job_id = finished_job(database)
    store = LocalStore(tmp_path / "store")
    tracemalloc.start()
    try:
        wanted = plan.prepare(database, job_id, "meta")
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        written = inflated(folder.stream(wanted, database, store))
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert written > 36e6
    # the zip's table of contents, and spools, which go to disk when they grow
    assert peak < 8e6, f"{peak / 1e6:.1f} MB for {written / 1e6:.0f} MB"


def inspect_log(database: Database, store: LocalStore, job_id: str) -> bytes:
    data = b"".join(folder.stream(plan.prepare(database, job_id, "none"), database, store))
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        (name,) = [name for name in tar.getnames() if name.endswith(".eval")]
        stream = tar.extractfile(name)
        assert stream is not None
        return stream.read()


def test_a_log_of_inspect_carries_the_time_of_the_job_alone(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = finished_job(database, 3)
    store = LocalStore(tmp_path / "store")
    with database.write() as session:
        created = jobs.get(session, job_id).created_at = 1_700_000_000.0
    first = inspect_log(database, store, job_id)
    with zipfile.ZipFile(io.BytesIO(first)) as log:
        entries = log.infolist()
    assert len(entries) == 3 + len(("summaries.json", "header.json"))
    assert {entry.date_time for entry in entries} == {time.gmtime(created)[:6]}
    assert {entry.compress_type for entry in entries} == {zipfile.ZIP_DEFLATED}
    later = time.time() + 86_400.0
    monkeypatch.setattr(time, "time", lambda: later)
    assert inspect_log(database, store, job_id) == first
