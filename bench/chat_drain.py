"""Chats in the middle of a long evaluation: how soon they start, and what they leave to it."""

import threading
import time
from itertools import pairwise
from pathlib import Path

import openai
import sqlalchemy as sa

from actograph.client import Client
from bench import chat_load
from bench.chat_load import Answers, Load
from storage.index.database import Database
from storage.tables.models import SampleRow

#: chats that come one at a time
SINGLE_CHATS = 15
#: seconds for which clients ask without a pause
CROWD_SECONDS = 45.0
#: the pauses are measured in these
TURN_SECONDS = 10.0
MODEL = "bench"


def measure(url: str, problems: Path, database: Database, *, clients: int) -> dict[str, float]:
    """Run an evaluation with capture, disturb it, and cancel it."""
    with Client(url) as client:
        job_id = client.submit(
            {
                "kind": "evaluation",
                "model": MODEL,
                "dataset": {"path": str(problems.resolve())},
                "epochs": 50,
                "sampling": {"temperature": 1.0, "max_tokens": 64},
                "capture": {"points": ["attn_in", "mlp_in"], "layers": "all"},
            }
        ).id
        while client.jobs.get(job_id).progress.completed == 0:
            time.sleep(0.1)
        result = _single(url, job_id, database)
        result |= _crowd(url, job_id, database, clients)
        if client.jobs.get(job_id).status.is_terminal():
            raise SystemExit("the evaluation ended too soon; give more --problems")
        client.jobs.cancel(job_id)
    return result


def _single(url: str, job_id: str, database: Database) -> dict[str, float]:
    """One chat at a time, at another moment of the unit in hand each time."""
    began_at, asked = time.time(), []
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        for turn in range(SINGLE_CHATS):
            time.sleep(0.3 + 0.07 * turn)
            sent = time.time()
            answer = client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": chat_load.question(turn)}], max_tokens=8
            )
            asked.append((sent, (answer.model_extra or {})["run_id"]))
    seconds = time.time() - began_at
    with database.read() as session:
        rows = session.execute(
            sa.select(SampleRow.job_id, SampleRow.started_at).where(
                SampleRow.job_id.in_([run_id for _, run_id in asked])
            )
        ).all()
    starts: dict[str, float] = {row.job_id: row.started_at for row in rows}
    units = _units(database, job_id)
    waits = sorted(starts[run_id] - sent for sent, run_id in asked)
    between = [sum(sent < unit < starts[run_id] for unit in units) for sent, run_id in asked]
    return {
        "single_chats": float(len(asked)),
        "wait_for_the_start_p50_s": waits[len(waits) // 2],
        "wait_for_the_start_max_s": waits[-1],
        "units_begun_before_it_max": float(max(between)),
        "units_per_second_meanwhile": sum(unit > began_at for unit in units) / seconds,
    }


def _crowd(url: str, job_id: str, database: Database, clients: int) -> dict[str, float]:
    """Many clients that always have a request waiting, and the evaluation's units meanwhile."""
    over = threading.Event()
    timer = threading.Timer(CROWD_SECONDS, over.set)
    began_at = time.time()
    timer.start()
    found = chat_load.run(
        Load(url=url, model=MODEL, clients=clients, chats=10**9, extra={}, stop=over.is_set), Answers()
    )
    ended_at = time.time()
    if found.errors:
        raise SystemExit(f"chats in mid-drain failed: {found.errors}")
    during = [unit for unit in _units(database, job_id) if began_at < unit < ended_at]
    # the first one may have been in hand already
    moments = [began_at, *during, ended_at]
    pauses = [later - earlier for earlier, later in pairwise(moments)]
    return {
        "crowd_seconds": ended_at - began_at,
        "crowd_chats_per_second": found.done / (ended_at - began_at),
        "units_of_the_evaluation": float(len(during)),
        "longest_pause_s": max(pauses),
        "longest_pause_in_turns": max(pauses) / TURN_SECONDS,
    }


def _units(database: Database, job_id: str) -> list[float]:
    """When each unit of the job began."""
    statement = (
        sa.select(SampleRow.started_at)
        .where(SampleRow.job_id == job_id, SampleRow.started_at.is_not(None))
        .distinct()
        .order_by(SampleRow.started_at)
    )
    with database.read() as session:
        return [float(moment) for moment in session.scalars(statement) if moment is not None]
