"""Tokenizer and chat template of each loaded model, so that the API counts tokens without the model."""

import json
import zlib
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from storage.index.upsert import Upsert
from storage.tables.models import ModelTokenizerRow

_keep = Upsert(ModelTokenizerRow, "sha256", "definition")


def keep(session: Session, model: str, definition: Mapping[str, Any]) -> None:
    """Store the definition of a model's tokenizer, unless it is stored already.

    Args:
        definition: `tokenizer` (JSON of the tokenizers library), `chat_template` and `special_tokens`.
    """
    text = json.dumps(definition, sort_keys=True, ensure_ascii=False).encode(errors="surrogatepass")
    digest = sha256(text).hexdigest()
    if stored_sha256(session, model) != digest:
        _keep(session, [{"model": model, "sha256": digest, "definition": zlib.compress(text)}])


def drop(session: Session, model: str) -> None:
    """Delete a model's tokenizer, because the current one cannot be stored."""
    session.execute(sa.delete(ModelTokenizerRow).where(ModelTokenizerRow.model == model))


def stored_sha256(session: Session, model: str) -> str | None:
    """sha256 of the definition; None if no worker has stored one."""
    return session.scalar(sa.select(ModelTokenizerRow.sha256).where(ModelTokenizerRow.model == model))


def definition(session: Session, model: str) -> bytes | None:
    """The definition as JSON, compressed with zlib; None if no worker has stored one."""
    return session.scalar(sa.select(ModelTokenizerRow.definition).where(ModelTokenizerRow.model == model))
