"""A database for each test: once SQLite, once Postgres."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from sqlalchemy.orm import Session

from actograph.contract.job_specs import CaptureJobSpec, job_spec_adapter
from storage import samples
from storage.index.database import Database
from storage.jobs import jobs
from storage.samples.expansion import capture_samples
from tests.support.indexes import create_index


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.integration)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        opened = Database(f"sqlite:///{tmp_path / 'test.db'}")
        create_index(opened)
    else:
        opened = Database(request.getfixturevalue("postgres_url"))
    yield opened
    opened.close()


@pytest.fixture
def capture_spec() -> Callable[..., CaptureJobSpec]:
    def make(**changes: Any) -> CaptureJobSpec:
        value = {"kind": "capture", "model": "demo", "inputs": [{"prompt": "a"}]} | changes
        spec = job_spec_adapter.validate_python(value)
        assert isinstance(spec, CaptureJobSpec)
        return spec

    return make


@pytest.fixture
def submit(database: Database, capture_spec: Callable[..., CaptureJobSpec]) -> Callable[..., str]:
    """Inserts a job of `count` samples; returns its id."""

    def make(count: int = 1, **changes: Any) -> str:
        spec = capture_spec(inputs=[{"prompt": f"prompt {i}"} for i in range(count)], **changes)
        with database.write() as session:
            row = jobs.create(session, spec, total=count * spec.epochs)
            samples.insert(session, row.id, capture_samples(spec))
        # SQLite's clock counts milliseconds, and no two jobs of a test are of one moment by chance
        time.sleep(0.0015)
        return row.id

    return make


@pytest.fixture
def at_once(database: Database) -> Callable[..., None]:
    """Runs two pieces of work so that the second begins before the first is committed."""

    def run(first: Callable[[Session], object], second: Callable[[Session], object]) -> None:
        begun = Event()

        def follow() -> None:
            begun.set()
            with database.write() as session:
                second(session)

        with ThreadPoolExecutor(1) as pool:
            with database.write() as session:
                first(session)
                session.flush()
                following = pool.submit(follow)
                begun.wait()
                time.sleep(0.2)  # time to come as far as the first's commit lets it
                assert not following.done()
            following.result()

    return run
