"""Slices of tensors whose rows were chosen one by one, and of the summaries of rows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.contract.errors import NotFound
from api.tensor_slices import answer
from storage.artifacts.store import open_store
from storage.ids import new_session_id
from storage.manifest import SessionManifest, StoredTensor
from storage.session_files import SessionReader, SessionWriter, TensorRows

ROWS = np.arange(12, dtype="<f4").reshape(3, 4)
CHOSEN = (0, 4, 8)


def stored(folder: Path, *, chosen: bool) -> SessionReader:
    """A session of 5 prompt and 6 generated tokens; its rows are those of tokens 0, 4 and 8, or 0 to 2."""
    offset = 0 if chosen else None
    manifest = SessionManifest(
        session_id=new_session_id(), job_id="j", sample_id="s", sample_index=0, model="m", capture={},
        capture_sha256="0" * 64, dtype="model", prompt_tokens=5, generated_tokens=6, seed=0, created_at=0,
        tensors={
            "embed": StoredTensor(shape=(3, 4), dtype="F32", position_offset=offset),
            "embed.mean": StoredTensor(
                shape=(1, 4), dtype="F32", position_offset=offset, summary="mean", over=3
            ),
        },
    )  # fmt: skip
    store = open_store(folder.as_uri())
    with SessionWriter(store, manifest.session_id) as writer:
        mean = TensorRows("embed.mean", "F32", (1, 4), 0, ROWS.mean(0))
        writer.write_shard([TensorRows("embed", "F32", (3, 4), 0, ROWS, CHOSEN if chosen else None), mean])
        writer.finish(manifest, range(11), CHOSEN if chosen else None)
    return SessionReader(store, manifest.session_id)


def as_json(reader: SessionReader, name: str, rows: str | None = None) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(bytes(answer(reader, name, rows, "json").body))
    return body


def test_a_slice_names_the_tokens_of_its_rows(tmp_path: Path) -> None:
    reader = stored(tmp_path, chosen=True)
    body = as_json(reader, "embed", "1:3")
    assert (body["first_row"], body["tokens"], body["data"]) == (4, [4, 8], ROWS[1:].tolist())
    assert answer(reader, "embed", "2:3", "npy").headers["x-tensor-first-row"] == "8"
    assert as_json(reader, "row_positions")["data"] == list(CHOSEN)


def test_a_summary_begins_at_the_first_token_behind_it(tmp_path: Path) -> None:
    reader = stored(tmp_path, chosen=True)
    assert list(reader.tokens_of_rows("embed.mean")) == list(CHOSEN)
    body = as_json(reader, "embed.mean")
    assert (body["first_row"], body["tokens"], body["data"]) == (0, None, [ROWS.mean(0).tolist()])


def test_a_session_of_consecutive_rows_has_no_row_positions(tmp_path: Path) -> None:
    reader = stored(tmp_path, chosen=False)
    assert as_json(reader, "embed", "1:3")["tokens"] is None
    with pytest.raises(NotFound, match="consecutive"):
        answer(reader, "row_positions", None, "json")
