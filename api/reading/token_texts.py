"""Texts of a session's tokens, with the tokenizer that a worker has stored for the model."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

from storage.index.database import Database
from storage.queue import model_tokenizers
from storage.sessions import row_values
from storage.sessions.reader import SessionReader
from storage.sessions.value_cache import ValueCache

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 30.0
_SPELLER = Path(__file__).with_name("token_speller.py")


def of_session(database: Database, reader: SessionReader, cache: ValueCache) -> list[str] | str:
    """The text of each token; a text alone says why there are only ids."""
    manifest = reader.manifest
    with database.read() as session:
        digest = model_tokenizers.stored_sha256(session, manifest.model)
    if digest is None:
        return "no worker has stored the tokenizer of this model"
    key = row_values.content_key(reader, "texts", digest, manifest.tokenizer_sha256)
    kept = cache.get(key)
    if kept is None:
        with database.read() as session:
            definition = model_tokenizers.definition(session, manifest.model) or b""
        wanted = {"ids": reader.token_ids(), "sha256": manifest.tokenizer_sha256}
        try:
            kept = _spell(json.dumps(wanted).encode() + b"\n" + definition)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            log.warning("the tokens of session %s cannot be spelled: %s", reader.session_id, error)
            return f"the stored tokenizer cannot spell them ({type(error).__name__})"
        cache.put(key, kept)
    texts: list[str] | None = json.loads(kept)
    if texts is None:
        return "the model has another tokenizer now"
    return texts


def of_ids(ids: list[int], definition: bytes) -> list[str]:
    """The text of each token id; joined, they are the whole text.

    Args:
        definition: the tokenizer as `storage.queue.model_tokenizers` stores it.

    Raises:
        OSError, subprocess.SubprocessError, ValueError: the process failed or took too long.
    """
    texts: list[str] = json.loads(
        _spell(json.dumps({"ids": ids, "sha256": None}).encode() + b"\n" + definition)
    )
    return texts


def _spell(data: bytes) -> bytes:
    """Run `api.reading.token_speller` in a child process.

    Raises:
        OSError, subprocess.SubprocessError: the process failed or took too long.
    """
    ended = subprocess.run(
        [sys.executable, "-P", "-s", str(_SPELLER)],
        input=data,
        capture_output=True,
        timeout=_TIMEOUT_SECONDS,
        check=True,
        # the child does not receive our secrets
        env={"PATH": os.environ.get("PATH", ""), "TOKENIZERS_PARALLELISM": "false"},
    )
    return ended.stdout
