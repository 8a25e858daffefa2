"""A batch is committed with a few statements for each sample; what its samples share is read once."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from actograph.contract.job_specs import CaptureJobSpec, job_spec_adapter
from actograph.contract.resources import SessionFile, TensorInfo
from storage import samples
from storage.index.database import Database
from storage.index.ids import new_session_id
from storage.jobs import jobs
from storage.samples.expansion import capture_samples
from storage.sessions import sessions
from storage.sessions.sessions import NewSession
from tests.support.indexes import create_index


@pytest.fixture
def database(tmp_path: Path) -> Database:
    opened = Database(f"sqlite:///{tmp_path / 'index.db'}")
    create_index(opened)
    return opened


@pytest.mark.parametrize("count", [1, 16])
def test_sessions_of_a_unit_are_stored_with_one_statement_for_each_table(
    database: Database, count: int
) -> None:
    inputs = [{"prompt": f"{i}"} for i in range(count)]
    spec: Any = job_spec_adapter.validate_python(
        {
            "kind": "capture",
            "model": "m",
            "inputs": inputs,
            "tags": ["a", "b"],
            "expires_after": {"seconds": 9000},
        }
    )
    assert isinstance(spec, CaptureJobSpec)
    with database.write() as session:
        row = jobs.create(session, kind="capture", model="m", spec=spec, hooks=None, total=count)
        samples.insert(session, row.id, capture_samples(spec))
    statements: Counter[str] = Counter()
    with database.write() as session:
        leases = samples.claim(session, row.id, worker_id="w", count=count, lease_seconds=30.0)
        new = [
            NewSession(
                id=new_session_id(),
                job_id=row.id,
                sample_id=lease.id,
                sample_index=lease.sample_index,
                condition="",
                epoch=0,
                model="m",
                prompt_tokens=1,
                generated_tokens=1,
                rows=1,
                dtype="F32",
                hooks={"embed": TensorInfo(shape=(1, 8), dtype="F32", nbytes=32)},
                files=[SessionFile(name="manifest.json", bytes=5, sha256="0" * 64)],
                correct=None,
                tags=["b", "c"],
            )
            for lease in leases
        ]

        def note(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
            statements[statement.split("(", maxsplit=1)[0].strip()] += 1

        event.listen(database.engine, "before_cursor_execute", note)
        assert samples.committed(session, leases) == set()
        sessions.insert(session, *new)
    assert statements.total() == 5, statements
    with database.read() as session:
        shown = sessions.resources_of(session, sessions.find(session, sessions.SessionFilter())[0])
        assert len(shown) == count
        assert {tuple(one.tags) for one in shown} == {("a", "b", "c")}
        assert all(one.files and one.expires_at and not one.pinned for one in shown)
    database.close()


def test_results_that_were_committed_are_known_by_their_lease(database: Database) -> None:
    spec: Any = job_spec_adapter.validate_python(
        {"kind": "capture", "model": "m", "inputs": [{"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}]}
    )
    with database.write() as session:
        row = jobs.create(session, kind="capture", model="m", spec=spec, hooks=None, total=3)
        samples.insert(session, row.id, capture_samples(spec))
    with database.write() as session:
        first, second, third = samples.claim(session, row.id, worker_id="w", count=3, lease_seconds=-1.0)
        (again, *_) = samples.claim(session, row.id, worker_id="w", count=1, lease_seconds=30.0)
        result = samples.SampleResult(
            prompt="p", completion="c", finish_reason="stop", prompt_tokens=1, generated_tokens=1,
            scores={}, session_id=None,
        )  # fmt: skip
        samples.complete(session, again, result)
        samples.complete(session, second, result)
        assert samples.committed(session, [first, second, third]) == {second.id}
        assert samples.committed(session, [again]) == {first.id}
    database.close()
