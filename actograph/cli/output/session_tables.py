"""Sessions as tables."""

import time
from collections.abc import Sequence

from actograph.cli.output import tables
from actograph.contract.resources import Session
from actograph.progress import duration

HEADERS = (
    "SESSION ID", "JOB ID", "INDEX", "CONDITION", "PROMPT", "GENERATED", "ROWS", "HOOKS", "DTYPE", "SIZE",
    "CORRECT", "AGE",
)  # fmt: skip
_NUMBERS = ("INDEX", "PROMPT", "GENERATED", "ROWS", "HOOKS", "SIZE")


def render_sessions(sessions: Sequence[Session], *, full: bool) -> str:
    return tables.render(HEADERS, [_row(session, full=full) for session in sessions], right=_NUMBERS)


def describe(session: Session) -> str:
    """Describe a session: fields, hooks and files."""
    tokens = f"{session.prompt_tokens} prompt + {session.generated_tokens} generated"
    fields = {
        "id": session.id,
        "job": session.job_id,
        "sample": f"{session.sample_id} (row {session.sample_index}, epoch {session.epoch})",
        "condition": session.condition or "",
        "model": session.model,
        "created": tables.age(session.created_at) + " ago",
        "tokens": f"{tokens}, {session.rows} rows",
        "size": tables.size(session.bytes),
        "correct": _verdict(session),
        "tags": ", ".join(session.tags),
        "owner": session.owner or "",
        "pinned": "yes" if session.pinned else "",
        "expires": _expiry(session),
    }
    hooks = [
        [name, "x".join(map(str, info.shape)), info.dtype, str(info.first_row), tables.size(info.nbytes)]
        for name, info in session.hooks.items()
    ]
    files = [[file.name, tables.size(file.bytes), file.sha256] for file in session.files]
    parts = [
        tables.fields(fields, 10),
        tables.render(("HOOK", "SHAPE", "DTYPE", "FIRST ROW", "SIZE"), hooks, right=("FIRST ROW", "SIZE")),
        tables.render(("FILE", "SIZE", "SHA256"), files, right=("SIZE",)),
    ]
    return "\n\n".join(parts)


def _row(session: Session, *, full: bool) -> list[str]:
    return [
        tables.shorten(session.id, full=full),
        tables.shorten(session.job_id, full=full),
        str(session.sample_index),
        session.condition or "",
        str(session.prompt_tokens),
        str(session.generated_tokens),
        str(session.rows),
        str(len(session.hooks)),
        session.dtype,
        tables.size(session.bytes),
        _verdict(session),
        tables.age(session.created_at),
    ]


def _expiry(session: Session) -> str:
    if session.expires_at is None:
        return ""
    left = session.expires_at - time.time()
    when = f"in {duration(left)}" if left > 0 else "due"
    return f"{when} (not while it is pinned)" if session.pinned else when


def _verdict(session: Session) -> str:
    return "" if session.correct is None else "yes" if session.correct else "no"
