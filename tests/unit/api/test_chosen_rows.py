"""Slices of tensors: of chosen rows, of summaries of rows, and larger than memory should hold."""

import hashlib
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from starlette.responses import Response
from starlette.types import Message

from actograph.contract.errors import NotFound
from api.reading.tensor_slices import PIECE_BYTES, Format, answer
from storage.artifacts.factory import open_store
from storage.index.ids import new_session_id
from storage.sessions.manifest import SessionManifest, StoredTensor
from storage.sessions.writer import SessionReader, SessionWriter, TensorRows

ROWS = np.arange(12, dtype="<f4").reshape(3, 4)
CHOSEN = (0, 4, 8)


def manifest_of(prompt: int, generated: int, **tensors: StoredTensor) -> SessionManifest:
    return SessionManifest(
        session_id=new_session_id(), job_id="j", sample_id="s", sample_index=0, model="m", capture={},
        capture_sha256="0" * 64, dtype="model", prompt_tokens=prompt, generated_tokens=generated, seed=0,
        created_at=0, tensors=tensors,
    )  # fmt: skip


def stored(folder: Path, *, chosen: bool) -> SessionReader:
    """A session of 5 prompt and 6 generated tokens; its rows are those of tokens 0, 4 and 8, or 0 to 2."""
    offset = 0 if chosen else None
    rows = StoredTensor(shape=(3, 4), dtype="F32", position_offset=offset)
    summary = StoredTensor(shape=(1, 4), dtype="F32", position_offset=offset, summary="mean", over=3)
    manifest = manifest_of(5, 6, **{"embed": rows, "embed.mean": summary})
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


def test_a_session_of_consecutive_rows_has_no_row_positions(tmp_path: Path) -> None:
    reader = stored(tmp_path, chosen=False)
    assert as_json(reader, "embed", "1:3")["tokens"] is None
    with pytest.raises(NotFound, match="consecutive"):
        answer(reader, "row_positions", None, "json")


def large(folder: Path, rows: int, width: int) -> SessionReader:
    """A session with one tensor of so many rows, in two shards."""
    values = np.arange(rows * width, dtype="<f4").reshape(rows, width)
    manifest = manifest_of(rows, 1, embed=StoredTensor(shape=(rows, width), dtype="F32"))
    store = open_store(folder.as_uri())
    half = rows // 2
    with SessionWriter(store, manifest.session_id) as writer:
        writer.write_shard([TensorRows("embed", "F32", (half, width), 0, values[:half])])
        writer.write_shard([TensorRows("embed", "F32", (rows - half, width), half, values[half:])])
        writer.finish(manifest, range(rows + 1))
    return SessionReader(store, manifest.session_id)


async def sent(response: Response, take: Callable[[bytes], None]) -> None:
    """Everything that a server would send of the body, piece by piece."""

    async def receive() -> Message:
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            take(message.get("body", b""))

    await response({"type": "http", "method": "GET", "headers": []}, receive, send)


@pytest.mark.parametrize("form", ["safetensors", "npy"])
def test_the_memory_of_a_slice_does_not_grow_with_its_size(tmp_path: Path, form: Format) -> None:
    rows, width = 16_000, 1_024
    reader = large(tmp_path, rows, width)
    reader.rows("embed", 0, 1)  # headers are kept
    digest, largest, size, head = hashlib.sha256(), 0, 0, b""

    def take(piece: bytes) -> None:
        nonlocal largest, size, head
        head = head or piece
        digest.update(piece)
        largest, size = max(largest, len(piece)), size + len(piece)

    tracemalloc.start()
    try:
        response = answer(reader, "embed", None, form)
        anyio.run(sent, response, take)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size == int(response.headers["content-length"]) > rows * width * 4 > 60 << 20
    assert largest <= PIECE_BYTES
    assert peak < 10 << 20, peak
    whole = hashlib.sha256(head)
    for low in range(0, rows, 1000):
        whole.update(np.arange(low * width, (low + 1000) * width, dtype="<f4").tobytes())
    assert digest.digest() == whole.digest()
