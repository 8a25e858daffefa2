"""Jobs with their samples in the index, as the API inserts them."""

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from actograph.contract.chat_job import ChatJobSpec
from actograph.contract.job_specs import job_spec_adapter
from api.kinds import chat
from storage import samples
from storage.index.database import Database
from storage.jobs import jobs
from storage.samples import NewSample
from storage.samples.expansion import capture_samples
from storage.tables.models import JobRow


def insert(database: Database, spec: Any, new: Iterable[NewSample] | None = None, **fields: Any) -> str:
    """Insert a job and return its id.

    Args:
        new: its samples; None: those that the spec of a capture job or of a chat names.
        fields: as `jobs.create` takes them.
    """
    if new is None:
        new = chat.samples(spec) if isinstance(spec, ChatJobSpec) else capture_samples(spec)
    found = list(new)
    with database.write() as session:
        newest = session.scalar(sa.select(sa.func.max(JobRow.created_at))) or 0.0
        row = jobs.create(session, spec, total=len(found), **fields)
        # the clock of an index ticks in milliseconds: jobs have an order all the same
        row.created_at = max(row.created_at, newest + 0.001)
        samples.insert(session, row.id, found)
    return row.id


def insert_capture(database: Database, prompts: Iterable[str], **body: Any) -> str:
    """Insert a capture job of these prompts; `body` has fields of its spec."""
    base = {"kind": "capture", "model": "demo", "inputs": [{"prompt": prompt} for prompt in prompts]}
    return insert(database, job_spec_adapter.validate_python(base | body))


def insert_chat(
    database: Database, model: str, prompt: str = "one and two", *, priority: int = 0, **sampling: Any
) -> str:
    """Insert a chat of one short answer."""
    tokens = sampling.setdefault("max_tokens", 2)
    given = {"prompt": prompt, "max_tokens": tokens, "sampling": sampling}
    body = {"model": model, "inputs": [given], "sampling": sampling}
    spec = ChatJobSpec.model_validate(body | {"sample_timeout_seconds": 0, "priority": priority})
    return insert(database, spec, hooks=[])
