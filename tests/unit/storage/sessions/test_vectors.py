"""Stored vectors: what comes back is what was stored, and active jobs hold on to it."""

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from actograph.contract.errors import NotFound
from actograph.contract.interventions import NewVector, vector_sha256
from actograph.contract.resources import JobStatus
from storage.index import ids
from storage.index.database import Database
from storage.jobs import uses
from storage.sessions import vectors
from storage.tables.models import JobRow

NUMBERS = [0.5, -3.25, 1e-30, 3.0e38]


def new(name: str = "happy", **changes: object) -> NewVector:
    return NewVector.model_validate(
        {"name": name, "hook": "resid_post.1", "vector": NUMBERS, "metadata": {"from": "job"}} | changes
    )


def test_a_vector_comes_back_as_float32(database: Database) -> None:
    with database.write() as session:
        vector_id = vectors.insert(session, new(model="demo")).id
    assert ids.is_id(vector_id, "vec")
    with database.read() as session:
        stored = vectors.resource(vectors.get(session, vector_id))
    assert stored.vector == pytest.approx(NUMBERS, rel=1e-7)
    assert stored.vector[:2] == NUMBERS[:2]
    assert stored.sha256 == vector_sha256(NUMBERS) == vector_sha256(stored.vector)
    assert (stored.name, stored.hook, stored.width, stored.model) == ("happy", "resid_post.1", 4, "demo")
    assert stored.metadata == {"from": "job"}


def test_only_active_jobs_hold_a_vector(database: Database, submit: Callable[..., str]) -> None:
    with database.write() as session:
        held, condition_held, free = (vectors.insert(session, new()).id for _ in range(3))
    change = {"hook": "resid_post.1", "op": "add"}
    job_id = submit(interventions=[change | {"vector_id": held}])
    other = submit(conditions=[{"name": "a", "interventions": [change | {"vector_id": condition_held}]}])
    with database.read() as session:
        assert uses.user_of(session, held) == job_id
        assert uses.user_of(session, condition_held) == other
        assert uses.user_of(session, free) is None
    with database.write() as session:
        session.execute(sa.update(JobRow).where(JobRow.id == job_id).values(status=JobStatus.COMPLETED))
    with database.write() as session:
        assert uses.user_of(session, held) is None
        vectors.delete(session, held)
        with pytest.raises(NotFound):
            vectors.get(session, held)
        with pytest.raises(NotFound):
            vectors.delete(session, held)
