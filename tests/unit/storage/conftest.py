"""Jobs in a database, and work of two at once."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from sqlalchemy.orm import Session

from actograph.contract.job_specs import CaptureJobSpec, job_spec_adapter
from storage.index.database import Database
from tests.support.submitting import insert

#: modules with plain SQL, which run on Postgres in soak alone
PLAIN_SQL = {
    "test_comparisons", "test_deletion", "test_eta", "test_routing", "test_summary", "test_vectors",
    "test_workers_index",
}  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in PLAIN_SQL and "[postgres" in item.nodeid:
            item.add_marker(pytest.mark.soak)


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
        job_id = insert(database, spec)
        # SQLite's clock counts milliseconds, and no two jobs of a test are of one moment by chance
        time.sleep(0.0015)
        return job_id

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
                time.sleep(0.05)  # time to come as far as the first's commit lets it
                assert not following.done()
            following.result()

    return run
