"""Rows of many sessions in the index, without files: what lists and totals are measured on."""

import random
from dataclasses import dataclass
from itertools import islice
from typing import Any

import sqlalchemy as sa

from storage.index.database import Database
from storage.tables.models import JobRow, JobTagRow, SampleRow, SessionRow, SessionTagRow

#: one job in so many has this tag, condition or model; the others have the usual one
RARE_JOB = 20
BATCH = 2000
FIRST_CREATED = 1_700_000_000.0


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How many there are, and how large their rows are."""

    sessions: int = 100_000
    jobs: int = 40
    hooks: int = 6


def fill(database: Database, shape: Shape, seed: int = 0) -> None:
    """Insert the rows; ids come from `seed`, so that two databases hold the same."""
    rng = random.Random(seed)
    per_job = -(-shape.sessions // shape.jobs)
    made = 0
    for number in range(shape.jobs):
        job_id = f"job_{rng.getrandbits(128):032x}"
        count = min(per_job, shape.sessions - made)
        tags = ["all", "rare"] if number % RARE_JOB == 0 else ["all"]
        with database.write() as session:
            session.execute(sa.insert(JobRow), [_job(job_id, number, count, tags)])
            session.execute(sa.insert(JobTagRow), [{"job_id": job_id, "tag": tag} for tag in tags])
        first = {"job_id": job_id, "created_at": FIRST_CREATED + made, **_place(number)}
        rows = (_session(rng, first, index, shape.hooks) for index in range(count))
        while batch := list(islice(rows, BATCH)):
            _insert(database, batch, tags)
        made += count
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        # a server does this by itself in time; SQLite plans without
        if not database.is_sqlite:
            connection.execute(sa.text("VACUUM ANALYZE"))


def _insert(database: Database, batch: list[dict[str, Any]], tags: list[str]) -> None:
    with database.write() as session:
        session.execute(sa.insert(SampleRow), [_sample(row) for row in batch])
        session.execute(sa.insert(SessionRow), batch)
        session.execute(
            sa.insert(SessionTagRow),
            [
                {"session_id": row["id"], "tag": tag, "created_at": row["created_at"]}
                for row in batch
                for tag in tags
            ],
        )


def _job(job_id: str, number: int, count: int, tags: list[str]) -> dict[str, Any]:
    return {
        "id": job_id,
        "kind": "evaluation",
        "status": "completed",
        "model": _model(number),
        "spec": {"tags": tags},
        "priority": 5,
        "total": count,
        "completed": count,
        "failed": 0,
        "created_at": FIRST_CREATED + number,
    }


def _place(number: int) -> dict[str, Any]:
    """Data common to the sessions of job `number`."""
    return {"model": _model(number), "owner": f"key:{number % 4:08x}", "rare": number % RARE_JOB == 0}


def _session(rng: random.Random, first: dict[str, Any], index: int, hooks: int) -> dict[str, Any]:
    prompt, generated = rng.randint(60, 200), rng.randint(20, 500)
    rows = prompt + generated - 1
    tensor = {"shape": [rows, 1024], "dtype": "BF16", "first_row": 0, "position_offset": None}
    tensor |= {"summary": None, "over": None, "nbytes": rows * 2048}
    return {
        "id": f"ses_{rng.getrandbits(128):032x}",
        "job_id": first["job_id"],
        "sample_id": f"smp_{rng.getrandbits(128):032x}",
        "sample_index": index,
        "condition": "rare" if first["rare"] else f"c{index % 2}",
        "epoch": 0,
        "model": first["model"],
        "created_at": first["created_at"] + index,
        "prompt_tokens": prompt,
        "generated_tokens": generated,
        "rows": rows,
        "bytes": hooks * rows * 2048,
        "dtype": "BF16",
        "files": {
            "activations.safetensors": {"bytes": hooks * rows * 2048, "sha256": "0" * 64},
            "manifest.json": {"bytes": 5000, "sha256": "1" * 64},
        },
        "hooks": {f"resid_post.{layer}": tensor for layer in range(hooks)},
        "correct": rng.random() < 0.02,
        "owner": first["owner"],
        "expires_at": None,
        "pinned": False,
    }


def _model(number: int) -> str:
    return "example/rare" if number % RARE_JOB == 0 else "example/usual"


def _sample(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": row["sample_id"],
        "job_id": row["job_id"],
        "position": row["sample_index"],
        "sample_index": row["sample_index"],
        "condition": row["condition"],
        "epoch": 0,
        "status": "completed",
        "input": {},
        "session_id": row["id"],
    }
