"""Rows of a full index, made inside the database: jobs that have ended, each with its sessions, and a queue.

A million sessions take minutes, since nothing is sent row by row and the indexes are created afterwards.
Ids look random, as real ones do, so that neighbours in time lie far apart in the indexes by id.
"""

import json
from dataclasses import dataclass
from typing import cast

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex, DropIndex

from storage.index.database import Database
from storage.tables.models import JobRow, JobTagRow, SampleRow, SessionRow, SessionTagRow

#: for so many ended jobs one waits, with all its samples
QUEUED_JOB = 5
FIRST_CREATED = 1_700_000_000
_TABLES = (JobRow, JobTagRow, SampleRow, SessionRow, SessionTagRow)
_TENSOR = {"shape": [300, 1024], "dtype": "BF16", "first_row": 0, "position_offset": None}
_TENSOR |= {"summary": None, "over": None, "nbytes": 614_400}
_SPEC = {
    "kind": "evaluation",
    "tags": ["all"],
    "conditions": [{"name": "a"}, {"name": "b"}],
    "epochs": 1,
    "sampling": {"max_tokens": 512},
    "metadata": {},
}
_SCORES = {"exact_match,strict-match": {"value": 1.0, "answer": "42"}}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Number and size of the rows."""

    sessions: int
    #: sessions of each job; an even number, since problems have two conditions
    per_job: int = 100
    hooks: int = 6

    @property
    def jobs(self) -> int:
        """Ended jobs; the queued ones come on top."""
        return self.sessions // self.per_job


def fill(database: Database, shape: Shape) -> None:
    """Insert all rows into an empty index at the newest schema."""
    tables = [cast(sa.Table, row.__table__) for row in _TABLES]
    indexes = [index for table in tables for index in table.indexes]
    engine = sa.create_engine(database.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        if database.is_sqlite:
            connection.exec_driver_sql("PRAGMA synchronous = OFF")
            connection.exec_driver_sql("PRAGMA cache_size = -1000000")
        else:  # foreign keys are not checked row by row
            connection.exec_driver_sql("SET session_replication_role = replica")
            connection.exec_driver_sql("SET maintenance_work_mem = '512MB'")
        for index in indexes:
            connection.execute(DropIndex(index))
        for statement in _inserts(shape, is_sqlite=database.is_sqlite):
            _execute(connection, statement)
        for index in indexes:
            connection.execute(CreateIndex(index))
        # a server does this by itself in time; SQLite plans without
        last = "PRAGMA wal_checkpoint(TRUNCATE)" if database.is_sqlite else "VACUUM ANALYZE"
        connection.exec_driver_sql(last)
    _check(database, shape)


def _execute(connection: sa.Connection, statement: str) -> None:
    """Send a statement as it is: a percent sign in it is no placeholder."""
    raw = connection.connection.dbapi_connection
    assert raw is not None
    cursor = raw.cursor()
    cursor.execute(statement)
    cursor.close()


def _inserts(shape: Shape, *, is_sqlite: bool) -> list[str]:
    queued = shape.jobs // QUEUED_JOB
    hooks = json.dumps({f"resid_post.{layer}": _TENSOR for layer in range(shape.hooks)})
    ids, per_job = _Ids(is_sqlite=is_sqlite), shape.per_job

    def series(count: int) -> str:
        if is_sqlite:
            recursive = f"SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {count}"
            return f"(WITH RECURSIVE n(i) AS ({recursive}) SELECT i FROM n) AS n"
        return f"generate_series(0::bigint, {count - 1}) AS n(i)"

    false = "0" if is_sqlite else "false"
    correct = "i % 50 = 0"
    model = f"CASE WHEN (i / {per_job}) % 20 = 0 THEN 'example/rare' ELSE 'example/usual' END"
    size = 300 * 2048 * shape.hooks
    files = {
        "activations.safetensors": {"bytes": size, "sha256": "0" * 64},
        "manifest.json": {"bytes": 5000, "sha256": "1" * 64},
    }
    session_values = {
        "id": ids.of("ses", "i"), "job_id": ids.of("job", f"(i / {per_job})"),
        "sample_id": ids.of("smp", "i"),
        "sample_index": f"(i % {per_job}) / 2", "condition": "CASE WHEN i % 2 = 0 THEN 'a' ELSE 'b' END",
        "epoch": "0", "model": model, "created_at": f"{FIRST_CREATED} + i", "prompt_tokens": "100",
        "generated_tokens": "201", "rows": "300", "bytes": str(size), "dtype": "'BF16'",
        "hooks": f"'{hooks}'", "files": f"'{json.dumps(files)}'", "correct": correct,
        "owner": f"'key:0000000' || ((i / {per_job}) % 4)",
        "pinned": false,
    }  # fmt: skip
    return [
        _jobs(series(shape.jobs), ids, per_job, first=0, status="completed", size=size),
        *([_jobs(series(queued), ids, per_job, first=shape.jobs, status="queued")] if queued else []),
        f"INSERT INTO job_tags (job_id, tag) SELECT {ids.of('job', 'i')}, 'all' FROM {series(shape.jobs)}",
        _samples(series(shape.sessions), ids, per_job, first=0, ended=True),
        *(
            [_samples(series(queued * per_job), ids, per_job, first=shape.sessions, ended=False)]
            if queued
            else []
        ),
        f"INSERT INTO sessions ({', '.join(session_values)}) "
        f"SELECT {', '.join(session_values.values())} FROM {series(shape.sessions)}",
        "INSERT INTO session_tags (session_id, tag, created_at) "
        f"SELECT {ids.of('ses', 'i')}, 'all', {FIRST_CREATED} + i FROM {series(shape.sessions)}",
        "INSERT INTO session_tags (session_id, tag, created_at) "
        f"SELECT {ids.of('ses', '(i * 1000)')}, 'rare', {FIRST_CREATED} + i * 1000 "
        f"FROM {series(-(-shape.sessions // 1000))}",
    ]


def _jobs(series: str, ids: "_Ids", per_job: int, *, first: int, status: str, size: int = 0) -> str:
    created = f"{FIRST_CREATED} + (i + {first}) * {per_job}"
    count = per_job if status == "completed" else 0
    values = {
        "id": ids.of("job", f"(i + {first})"), "kind": "'evaluation'", "status": f"'{status}'",
        "model": "'example/usual'", "spec": f"'{json.dumps(_SPEC)}'", "priority": "5", "total": str(per_job),
        "completed": str(count), "failed": "0", "created_at": created,
        "finished_at": f"{created} + {per_job}" if count else "NULL", "owner": "'key:0000000' || (i % 4)",
        "bytes": str(count * size), "pending": str(int(count < per_job)), "served_at": "0", "logged_at": "0",
        "cached_tokens": "0",
    }  # fmt: skip
    return f"INSERT INTO jobs ({', '.join(values)}) SELECT {', '.join(values.values())} FROM {series}"


def _samples(series: str, ids: "_Ids", per_job: int, *, first: int, ended: bool) -> str:
    place = f"(i + {first})"
    values = {
        "id": ids.of("smp", place), "job_id": ids.of("job", f"({place} / {per_job})"),
        "position": f"i % {per_job}", "sample_index": f"(i % {per_job}) / 2",
        "condition": "CASE WHEN i % 2 = 0 THEN 'a' ELSE 'b' END", "epoch": "0",
        "status": "'completed'" if ended else "'pending'", "lease_token": "0", "losses": "0", "seed": "i",
        "input": "'{\"question\": \"Tom has 12 apples and buys 30 more. How many does he have?\"}'",
    }  # fmt: skip
    if ended:
        values |= {
            "prompt": "'Question: Tom has 12 apples and buys 30 more. How many does he have?'",
            "completion": "'12 + 30 = 42. #### 42'", "finish_reason": "'stop'", "prompt_tokens": "100",
            "generated_tokens": "201", "scores": f"'{json.dumps(_SCORES)}'",
            "session_id": ids.of("ses", "i"), "finished_at": f"{FIRST_CREATED} + i",
        }  # fmt: skip
    return f"INSERT INTO samples ({', '.join(values)}) SELECT {', '.join(values.values())} FROM {series}"


@dataclass(frozen=True, kw_only=True)
class _Ids:
    is_sqlite: bool

    def of(self, prefix: str, number: str) -> str:
        """SQL of the id of row `number`: a bijection scatters it over all ids."""
        scattered = f"({number} * 2654435761) % 4294967296"
        if self.is_sqlite:
            return f"printf('{prefix}_%08x%024x', {scattered}, {number})"
        return f"'{prefix}_' || lpad(to_hex({scattered}), 8, '0') || lpad(to_hex({number}), 24, '0')"


def _check(database: Database, shape: Shape) -> None:
    with database.read() as session:
        for row, wanted in ((SessionRow, shape.sessions), (JobRow, shape.jobs + shape.jobs // QUEUED_JOB)):
            found = session.scalar(sa.select(sa.func.count()).select_from(cast(sa.Table, row.__table__)))
            if found != wanted:
                raise RuntimeError(f"{found} rows in {row.__tablename__}, not {wanted}")
