"""Identifiers: a short prefix that says what it is, and 128 random bits in hex."""

import re
import secrets
from hashlib import sha256

_ID = re.compile(r"(job|smp|ses|file|wrk|vec|evt|batch|key)_[0-9a-f]{32}")


def new_job_id() -> str:
    return f"job_{secrets.token_hex(16)}"


def new_sample_id() -> str:
    return f"smp_{secrets.token_hex(16)}"


def new_session_id() -> str:
    return f"ses_{secrets.token_hex(16)}"


def new_file_id() -> str:
    return f"file_{secrets.token_hex(16)}"


def file_id_of(name: str) -> str:
    """The id of a file that is made of what `name` says: the same whenever it is made again."""
    return f"file_{sha256(name.encode()).hexdigest()[:32]}"


def new_worker_id() -> str:
    return f"wrk_{secrets.token_hex(16)}"


def new_vector_id() -> str:
    return f"vec_{secrets.token_hex(16)}"


def new_webhook_id() -> str:
    return f"evt_{secrets.token_hex(16)}"


def new_scoring_id() -> str:
    return f"scoring_{secrets.token_hex(16)}"


def new_batch_id() -> str:
    return f"batch_{secrets.token_hex(16)}"


def new_key_id() -> str:
    return f"key_{secrets.token_hex(16)}"


def is_id(text: str, prefix: str) -> bool:
    """Whether `text` is an id of ours with this prefix (`job`, `smp`, `ses`, `file`, ...)."""
    match = _ID.fullmatch(text)
    return match is not None and match[1] == prefix
