"""Rows of many stored sessions as one matrix."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.contract.errors import InvalidRequest, MixedIdentities, NotFound, StoreDamaged
from actograph.contract.resources import TensorInfo
from actograph.contract.row_selection import Segment, TokenRange
from storage.artifacts.checked_files import CheckedFile
from storage.artifacts.factory import open_store
from storage.artifacts.store import ArtifactStore
from storage.index.ids import new_session_id
from storage.results import matrix
from storage.results.matrix import RowChoice, SessionSource, plan, read
from storage.sessions.manifest import StoredTensor
from storage.sessions.writer import SessionWriter, TensorRows
from tests.support.samples import manifest_of

HOOK = "resid_post.1"
CHOSEN = (0, 4, 6)
FORMS = {"mlp_in.1": {"position_offset": 0}, "mlp_out.1": {"summary": "mean", "over": 7}}


def rows_of(number: int) -> Any:
    return np.arange(28, dtype="<f4").reshape(7, 4) + 100 * number


def write_session(store: ArtifactStore, number: int) -> dict[str, TensorInfo]:
    """5 prompt and 3 generated tokens, with five forms of tensor. Returns the index's tensors."""
    rows = rows_of(number)
    arrays = {
        HOOK: ("F32", rows),
        "attn_in.1": ("BF16", np.full((7, 4), 0x3F80, "<u2")),
        "mlp_in.1": ("F16", rows[list(CHOSEN)].astype("<f2")),
        "mlp_out.1": ("F32", rows.mean(axis=0, keepdims=True)),
        "expert_indices.1": ("I64", np.arange(14, dtype="<i8").reshape(7, 2)),
    }
    segments = [("prompt", 0, 5), ("think", 5, 6), ("answer", 6, 8)]
    tensors = {
        name: StoredTensor.model_validate({"shape": array.shape, "dtype": dtype, **FORMS.get(name, {})})
        for name, (dtype, array) in arrays.items()
    }
    manifest = manifest_of(
        f"ses_{number:032x}", tensors, sample_index=number, prompt_tokens=5, generated_tokens=3,
        segments=[Segment(name=name, start=a, stop=b) for name, a, b in segments],
    )  # fmt: skip
    with SessionWriter(store, manifest.session_id) as writer:
        writer.write_shard(
            [
                TensorRows(name, dtype, array.shape, 0, array, CHOSEN if name == "mlp_in.1" else None)
                for name, (dtype, array) in arrays.items()
            ]
        )
        writer.finish(manifest, range(8), CHOSEN)
    return {name: TensorInfo.model_validate(stored.model_dump()) for name, stored in manifest.tensors.items()}


class Sessions:
    """Five stored sessions."""

    def __init__(self, store: ArtifactStore) -> None:
        self.store = store
        self.infos = [write_session(store, number) for number in range(5)]

    def sources(self, hook: str, **changes: Any) -> list[SessionSource]:
        values = [
            {
                "id": f"ses_{number:032x}", "sample_id": "s", "sample_index": number, "epoch": 0,
                "condition": "ab"[number % 2], "correct": number < 3, "prompt_tokens": 5, "rows": 7,
                "identity_sha256": None, "hook": hook, "info": infos[hook], "stored": list(infos),
            }
            for number, infos in enumerate(self.infos)
        ]  # fmt: skip
        return [SessionSource(**one | changes) for one in values]

    def read(
        self,
        hook: str = HOOK,
        positions: Any = "last_prompt",
        reduce: Any = "none",
        found: Sequence[SessionSource] | None = None,
        max_bytes: int = 1 << 20,
    ) -> Any:
        choice = RowChoice(positions=positions, reduce=reduce, max_bytes=max_bytes)
        found = self.sources(hook) if found is None else found
        planned = plan(self.store, found, hook, choice)
        file = io.BytesIO(
            b"".join(
                planned.npz(
                    {one.id: float(bool(one.correct)) for one in found},
                    {one.id: one.sample_index for one in found},
                )
            )
        )
        sent = np.load(file, allow_pickle=False)
        held = read(self.store, found, hook, choice)
        assert np.array_equal(sent["features"], np.concatenate([piece.rows for piece in held.pieces]))
        assert sent["tokens"].tolist() == [token for piece in held.pieces for token in piece.tokens]
        return sent


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Sessions:
    return Sessions(open_store(tmp_path_factory.mktemp("store").as_uri()))


def test_features_and_where_they_come_from(sessions: Sessions, subtests: pytest.Subtests) -> None:
    positions: Any
    for positions, taken in [
        ("last_prompt", [4]),
        ("last", [6]),
        ("all", [0, 1, 2, 3, 4, 5, 6]),
        ("generated", [5, 6]),
        ("think", [5]),
        (["think", "answer"], [5, 6]),
        ([2, -1], [2, 4]),
        (TokenRange(start=5), [5, 6]),
        ("generated[-1:]", [6]),
        ("all[-3:-1]", [4, 5]),
        ("prompt[1:3]", [1, 2]),
    ]:
        with subtests.test(positions=positions):
            matrix = sessions.read(positions=positions)
            assert matrix["features"].dtype == np.float32
            assert np.array_equal(matrix["features"], np.concatenate([rows_of(n)[taken] for n in range(5)]))
            assert matrix["tokens"].tolist() == taken * 5
            each = len(taken)
            assert matrix["labels"].tolist() == np.repeat([1.0, 1, 1, 0, 0], each).tolist()
            assert matrix["sample_index"].tolist() == np.repeat(range(5), each).tolist()
            assert matrix["condition"].tolist() == np.repeat(list("ababa"), each).tolist()
            ids = np.repeat([f"ses_{n:032x}" for n in range(5)], each).tolist()
            assert matrix["session_id"].tolist() == ids
            assert str(matrix["skipped"]) == "[]"


def test_one_row_for_each_session(sessions: Sessions, subtests: pytest.Subtests) -> None:
    for positions, reduce, expected in [
        ("all", "mean", [rows_of(n).mean(axis=0) for n in range(5)]),
        ("generated", "max", [rows_of(n)[5:7].max(axis=0) for n in range(5)]),
        ("prompt", "last", [rows_of(n)[4] for n in range(5)]),
    ]:
        with subtests.test(positions=positions):
            matrix = sessions.read(positions=positions, reduce=reduce)
            assert np.array_equal(matrix["features"], np.stack(expected))
            assert set(matrix["tokens"].tolist()) == ({4} if reduce == "last" else {-1})


def test_other_forms_of_tensors(sessions: Sessions) -> None:
    chosen = sessions.read("mlp_in.1", "last_prompt")
    assert chosen["features"].dtype == np.float32, "float16 widened"
    assert np.array_equal(chosen["features"], np.stack([rows_of(n)[4] for n in range(5)]))
    summary = sessions.read("mlp_out.1", "all", "mean")
    assert np.array_equal(summary["features"], np.stack([rows_of(n).mean(axis=0) for n in range(5)]))
    with pytest.raises(InvalidRequest, match="stored as the mean"):
        sessions.read("mlp_out.1", "last")
    bfloat16 = sessions.read("attn_in.1")["features"]
    assert (bfloat16.dtype, bool((bfloat16 == 1).all())) == (np.float32, True)
    assert sessions.read("expert_indices.1")["features"].dtype == np.int64
    with pytest.raises(InvalidRequest, match="mean needs floats"):
        sessions.read("expert_indices.1", "all", "mean")


def test_sessions_without_rows_are_skipped_with_the_reason(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    sessions = Sessions(store)
    found = sessions.sources(HOOK)
    other = sessions.sources("mlp_in.1")[1]
    found[1] = SessionSource(**vars(found[1]) | {"hook": None, "info": None, "stored": ()})
    for path in (tmp_path / "sessions" / found[2].id).glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-8])
    (tmp_path / "sessions" / found[3].id / "manifest.json").unlink()
    matrix = sessions.read(found=found)
    assert matrix["sample_index"].tolist() == [0, 4]
    skipped = json.loads(str(matrix["skipped"]))
    assert [one["session_id"] for one in skipped] == [one.id for one in found[1:4]]
    assert "no hook is" in skipped[0]["reason"]
    gone = [SessionSource(**vars(found[0]) | {"id": new_session_id()})]
    with pytest.raises(NotFound, match=r"no session gave rows of resid_post\.1"):
        sessions.read(found=gone)
    with pytest.raises(NotFound, match="no row at positions"):
        sessions.read("mlp_in.1", [3], found=[other])
    with pytest.raises(NotFound, match="no session matches the filters"):
        sessions.read(found=[])


def test_too_many_bytes_are_refused(sessions: Sessions) -> None:
    gone = sessions.sources(HOOK, id=new_session_id())
    with pytest.raises(InvalidRequest, match="max_bytes=64"):
        sessions.read(found=gone, max_bytes=64)  # by the index: nothing can be read
    for hook, positions in ((HOOK, "think"), ("mlp_in.1", "last_prompt")):  # by the files
        with pytest.raises(InvalidRequest, match="max_bytes=64"):
            sessions.read(hook, positions, max_bytes=64)
        assert len(sessions.read(hook, positions, max_bytes=80)["features"]) == 5


def test_sessions_that_do_not_fit_together_are_refused(sessions: Sessions) -> None:
    found = sessions.sources(HOOK, identity_sha256="a" * 64)
    found[2] = SessionSource(**vars(found[2]) | {"identity_sha256": "b" * 64})
    with pytest.raises(MixedIdentities, match=r"aaaaaaaaaaaa and bbbbbbbbbbbb.*by the filters"):
        sessions.read(found=found)
    found = sessions.sources(HOOK)
    wide = TensorInfo(shape=(7, 6), dtype="F32")
    found[4] = SessionSource(**vars(found[4]) | {"info": wide})
    with pytest.raises(InvalidRequest, match="6 wide"):
        sessions.read(found=found)


def test_an_answer_holds_few_bytes_until_they_are_taken(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Sessions of 112 bytes, of which 64 are read at once and at most 128 held."""
    monkeypatch.setattr(matrix, "BLOCK_BYTES", 64)
    monkeypatch.setattr(matrix, "HELD_BYTES", 128)
    held, most = 0, 0
    read_file = CheckedFile.read

    def counted(self: CheckedFile, start: int, length: int) -> bytes:
        nonlocal held, most
        held += length
        most = max(most, held)
        return read_file(self, start, length)

    for positions, reduce, rows in [("all", "none", 35), ("all[::2]", "none", 20), ("all", "mean", 5)]:
        with subtests.test(positions=positions, reduce=reduce):
            choice: Any = RowChoice(positions=positions, reduce=reduce, max_bytes=1 << 20)
            found = sessions.sources(HOOK)
            planned = plan(sessions.store, found, HOOK, choice)
            held, most, pieces = 0, 0, []
            monkeypatch.setattr(CheckedFile, "read", counted)
            for piece in planned.npz({one.id: 1.0 for one in found}, {one.id: 0 for one in found}):
                pieces.append(piece)
                held = 0
            monkeypatch.setattr(CheckedFile, "read", read_file)
            loaded = np.load(io.BytesIO(b"".join(pieces)), allow_pickle=False)
            assert len(loaded["features"]) == rows
            assert 0 < most <= (128 if reduce == "none" else 5 * 112)
            every = np.concatenate([rows_of(n) for n in range(5)])
            assert reduce != "none" or positions != "all" or np.array_equal(loaded["features"], every)


def test_a_file_that_is_lost_meanwhile_breaks_the_answer_off(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    sessions = Sessions(store)
    found = sessions.sources(HOOK)
    planned = plan(store, found, HOOK, RowChoice(positions="all", reduce="none", max_bytes=1 << 20))
    for path in (tmp_path / "sessions" / found[2].id).glob("*.safetensors"):
        path.unlink()
    with pytest.raises(StoreDamaged, match="there is no stored file"):
        list(planned.npz({one.id: 1.0 for one in found}, {one.id: 0 for one in found}))
