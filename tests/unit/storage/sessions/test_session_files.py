"""Session files: what goes in comes out, here and in other readers; what is wrong is not stored."""

import json
import secrets
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actograph import tensor_files
from actograph.client.stored_session import open_folder
from actograph.contract.errors import (
    CaptureFailed,
    NotFound,
    RangeNotSatisfiable,
    ServiceUnavailable,
    StorageFull,
    StoreDamaged,
)
from storage.artifacts.local import LocalStage, LocalStore
from storage.sessions.manifest import SessionManifest, StoredTensor
from storage.sessions.writer import SessionReader, SessionWriter, TensorRows
from tests.support.samples import manifest_of

TORCH_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}
PROMPT, GENERATED = 4, 7
ROWS = PROMPT + GENERATED - 1
TOKENS = list(range(100, 100 + PROMPT + GENERATED))


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "resid_post.0": torch.randn(ROWS, 6).bfloat16(),
        "resid_post.1": torch.randn(ROWS, 6),
        "logits": torch.randn(GENERATED, 3).half(),  # from the last prompt token on
        "expert_indices.0": torch.arange(2 * ROWS).view(ROWS, 2),
    }


def new_id() -> str:
    return f"ses_{secrets.token_hex(16)}"


def manifest(of: str, tensors: dict[str, StoredTensor], /, **changes: Any) -> SessionManifest:
    lengths = {"prompt_tokens": PROMPT, "generated_tokens": GENERATED}
    return manifest_of(of, tensors, **lengths | {"model": "tiny"} | changes)


def first_row(hook: str) -> int:
    return PROMPT - 1 if hook == "logits" else 0


def expected(tensors: dict[str, torch.Tensor]) -> dict[str, StoredTensor]:
    return {
        hook: StoredTensor(
            shape=(t.shape[0], t.shape[1]), dtype=TORCH_NAMES[t.dtype], first_row=first_row(hook)
        )
        for hook, t in tensors.items()
    }


def rows(hook: str, tensor: torch.Tensor, start: int, stop: int) -> TensorRows:
    """Token rows [start, stop) of a hook, as far as it has them."""
    offset = first_row(hook)
    low = max(start, offset)
    part = tensor[low - offset : max(stop, low) - offset].contiguous()
    data = part.view(torch.uint8).numpy()
    return TensorRows(hook, TORCH_NAMES[tensor.dtype], (part.shape[0], part.shape[1]), low, data)


def store_session(
    store: LocalStore, tensors: dict[str, torch.Tensor], cuts: Sequence[int] = (), **changes: Any
) -> str:
    session_id = new_id()
    with SessionWriter(store, session_id) as writer:
        ends = [0, *cuts, ROWS]
        for start, stop in pairwise(ends):
            shard = [rows(hook, t, start, stop) for hook, t in tensors.items()]
            writer.write_shard([part for part in shard if part.shape[0]])
        writer.finish(manifest(session_id, expected(tensors), **changes), TOKENS)
    return session_id


def as_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def staged(store: LocalStore) -> list[Path]:
    return list((store.root / "sessions").iterdir())


# --- what is stored


def test_one_shard_opens_with_the_reference_implementation(
    store: LocalStore, tensors: dict[str, torch.Tensor]
) -> None:
    session_id = store_session(store, tensors)
    folder = store.root / "sessions" / session_id
    assert {p.name for p in folder.iterdir()} == {"activations.safetensors", "manifest.json"}
    loaded = safetensors.torch.load_file(folder / "activations.safetensors")
    assert loaded.pop("token_ids").tolist() == TOKENS
    assert loaded.keys() == tensors.keys()
    for hook, tensor in tensors.items():
        assert loaded[hook].dtype == tensor.dtype
        assert torch.equal(loaded[hook], tensor)
    with safetensors.safe_open(folder / "activations.safetensors", framework="pt") as file:
        assert torch.equal(file.get_slice("resid_post.0")[2:5], tensors["resid_post.0"][2:5])
        about = file.metadata()
    assert about["format"] == "pt"
    assert about["model"] == "tiny"
    assert about["session_id"] == session_id
    assert about["schema_version"] == "1"


def test_shards_open_through_the_hub_index(store: LocalStore, tensors: dict[str, torch.Tensor]) -> None:
    session_id = store_session(store, tensors, cuts=[2, 7])
    folder = store.root / "sessions" / session_id
    index = json.loads((folder / "activations.safetensors.index.json").read_text())
    shards = [f"activations-0000{i}.safetensors" for i in (1, 2, 3)]
    assert sorted(p.name for p in folder.iterdir()) == sorted(
        [*shards, "activations.safetensors.index.json", "manifest.json"]
    )
    assert index["weight_map"]["token_ids"] == shards[-1]
    assert set(index["weight_map"].values()) == set(shards)
    loaded = {}
    for name, file in index["weight_map"].items():
        with safetensors.safe_open(folder / file, framework="pt") as opened:
            loaded[name] = opened.get_tensor(name)
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in loaded.values())
    assert "logits[0:4]" in loaded  # token rows 3 to 6
    for hook, tensor in tensors.items():
        parts = [tensor_files.parse_shard_tensor_name(name) for name in loaded]
        starts = sorted((p[1], p[2]) for p in parts if p and p[0] == hook)
        joined = torch.cat([loaded[tensor_files.shard_tensor_name(hook, *ends)] for ends in starts])
        assert torch.equal(joined, tensor)


def test_the_manifest_says_what_was_asked_and_stored(
    store: LocalStore, tensors: dict[str, torch.Tensor]
) -> None:
    session_id = new_id()
    with SessionWriter(store, session_id) as writer:
        writer.write_shard([rows(h, t, 0, ROWS) for h, t in tensors.items()])
        files = writer.finish(manifest(session_id, expected(tensors)), TOKENS)
    folder = store.root / "sessions" / session_id
    assert [f.name for f in files] == ["activations.safetensors", "manifest.json"]
    assert all((folder / f.name).stat().st_size == f.bytes for f in files)
    reader = SessionReader(store, session_id)
    assert reader.manifest == writer.manifest
    assert reader.manifest.files == files[:-1]
    info = reader.tensor_info("logits")
    assert (info.shape, info.dtype, info.first_row) == ((GENERATED, 3), "F16", PROMPT - 1)
    assert info.nbytes == GENERATED * 3 * 2
    assert reader.manifest.tensors["logits"].files == ["activations.safetensors"]
    reader.verify()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_session_comes_back(data: st.DataObject) -> None:
    """Whatever the dtypes, widths and shards: rows, alignment, token ids, other readers."""
    dtypes = st.sampled_from(list(TORCH_NAMES))
    widths = data.draw(st.lists(st.tuples(dtypes, st.integers(1, 9)), min_size=1, max_size=4))
    torch.manual_seed(len(widths))
    tensors = {f"resid_post.{i}": (torch.randn(ROWS, w) * 9).to(dtype) for i, (dtype, w) in enumerate(widths)}
    cuts = sorted(data.draw(st.sets(st.integers(1, ROWS - 1), max_size=3)))
    with tempfile.TemporaryDirectory() as folder:
        store = LocalStore(Path(folder))
        session_id = store_session(store, tensors, cuts)
        reader = SessionReader(store, session_id)
        reader.verify()
        assert reader.token_ids() == TOKENS
        lazy = open_folder(store.root / "sessions" / session_id)
        for hook, tensor in tensors.items():
            start = data.draw(st.integers(0, ROWS))
            stop = data.draw(st.integers(start, ROWS))
            piece = reader.rows(hook, start, stop)
            assert piece.data == as_bytes(tensor[start:stop])
            assert (piece.shape, piece.dtype) == ((stop - start, tensor.shape[1]), TORCH_NAMES[tensor.dtype])
            assert lazy[hook].read_bytes(start, stop) == piece.data
        for path in (store.root / "sessions" / session_id).glob("*.safetensors"):
            raw = path.read_bytes()
            header = tensor_files.read_header(lambda at, n, raw=raw: raw[at : at + n], len(raw))  # type: ignore[misc]
            assert all(e.start % tensor_files.itemsize(e.dtype) == 0 for e in header.tensors.values())
            assert len(safetensors.torch.load_file(path)) == len(header.tensors)


def test_hooks_without_rows_have_empty_tensors(store: LocalStore) -> None:
    session_id = new_id()
    full, none = torch.randn(ROWS, 2), StoredTensor(shape=(0, 5), dtype="BF16", first_row=ROWS)
    with SessionWriter(store, session_id) as writer:
        writer.write_shard([rows("resid_post.0", full, 0, ROWS)])
        writer.write_shard([TensorRows("resid_post.1", "BF16", (0, 5), ROWS, b"")])
        tensors = {**expected({"resid_post.0": full}), "resid_post.1": none}
        writer.finish(manifest(session_id, tensors), TOKENS)
    reader = SessionReader(store, session_id)
    reader.verify()
    assert reader.rows("resid_post.1", 0, 0).data == b""
    assert [f.name for f in reader.manifest.files] == ["activations.safetensors"]
    assert open_folder(store.root / "sessions" / session_id)["resid_post.1"][:].shape == (0, 5)


@pytest.mark.parametrize("cuts", [(), (4,)])
def test_a_header_that_outgrows_its_room_costs_a_copy_and_nothing_else(
    store: LocalStore, tensors: dict[str, torch.Tensor], cuts: Sequence[int]
) -> None:
    session_id = store_session(store, tensors, cuts, model="m" * 1024)
    reader = SessionReader(store, session_id)
    reader.verify()
    assert all(reader.rows(h, 0, len(t)).data == as_bytes(t) for h, t in tensors.items())
    folder = store.root / "sessions" / session_id
    assert {p.name for p in folder.iterdir()} == {f.name for f in reader.manifest.files} | {"manifest.json"}
    last = reader.manifest.files[len(cuts)].name
    assert len(safetensors.torch.load_file(folder / last)) == len(tensors) + 1


# --- what is refused


def part(**changes: Any) -> TensorRows:
    fields: dict[str, Any] = {
        "name": "resid_post.0", "dtype": "F32", "shape": (2, 3), "first_row": 0, "data": bytes(24),
    }  # fmt: skip
    return TensorRows(**(fields | changes))


def test_shards_that_do_not_fit_are_refused(store: LocalStore, subtests: pytest.Subtests) -> None:
    for shards, reason in [
        ([[part(), part()]], "twice"),
        ([[part(data=bytes(20))]], "received 20 bytes, F32 .2, 3. takes 24"),
        ([[part(data=(bytes(12), bytes(8)))]], "received 20 bytes"),
        ([[part(dtype="F33")]], "cannot be stored"),
        ([[part(dtype="F16")]], "takes 12"),
        ([[part(name="token_ids")]], "cannot be the name"),
        ([[part(name="__metadata__")]], "cannot be the name"),
        ([[part(name="x[0:3]")]], "cannot be the name"),
        ([[part(name="")]], "cannot be the name"),
        ([[part(shape=(2, 0), data=b"")]], "impossible"),
        ([[part(first_row=-1)]], "impossible"),
        ([[part(data=np.zeros((3, 2), "<f4").T)]], "not contiguous"),
        ([[part()], [part()]], "received rows from 0 on, expected 2"),
        ([[part()], [part(first_row=3)]], "received rows from 3 on, expected 2"),
        ([[part()], [part(first_row=2, shape=(3, 2))]], "width 3 became F32 of width 2"),
        ([[part()], [part(first_row=2, dtype="I32")]], "F32 of width 3 became I32"),
    ]:
        with subtests.test(shards=shards, reason=reason):
            writer = SessionWriter(store, new_id())
            for shard in shards[:-1]:
                writer.write_shard(shard)
            with pytest.raises(CaptureFailed, match=reason):
                writer.write_shard(shards[-1])
            assert not staged(store)
            with pytest.raises(CaptureFailed, match="has ended"):
                writer.write_shard([part()])


TWO_ROWS = {"resid_post.0": StoredTensor(shape=(2, 3), dtype="F32")}


def test_what_was_promised_must_have_come(store: LocalStore, subtests: pytest.Subtests) -> None:
    for tensors, changes, tokens, reason in [
        ({}, {}, TOKENS, "names no tensors"),
        ({**TWO_ROWS, "resid_post.1": TWO_ROWS["resid_post.0"]}, {}, TOKENS, "1: received no rows"),
        ({"resid_post.1": TWO_ROWS["resid_post.0"]}, {}, TOKENS, "does not name: resid_post.0"),
        ({"resid_post.0": StoredTensor(shape=(3, 3), dtype="F32")}, {}, TOKENS, r"expected F32 \[3, 3\]"),
        ({"resid_post.0": StoredTensor(shape=(2, 3), dtype="I32")}, {}, TOKENS, "expected I32"),
        (
            {"resid_post.0": StoredTensor(shape=(2, 3), dtype="F32", first_row=1)},
            {}, TOKENS, "first row is 0, expected 1",
        ),
        (TWO_ROWS, {}, TOKENS[:-1], "10 token ids for 4 prompt and 7 generated"),
        (TWO_ROWS, {}, [*TOKENS[:-1], -1], "negative"),
        (TWO_ROWS, {"session_id": "ses_" + "a" * 32}, TOKENS, "belongs to session ses_a"),
        (TWO_ROWS, {"prompt_tokens": 1, "generated_tokens": 1}, [1, 2], "the model ran 1 tokens"),
    ]:  # fmt: skip
        with subtests.test(tensors=tensors, changes=changes, tokens=tokens, reason=reason):
            session_id = new_id()
            writer = SessionWriter(store, session_id)
            writer.write_shard([part()])
            with pytest.raises(CaptureFailed, match=reason):
                writer.finish(manifest(session_id, tensors, **changes), tokens)
            assert not staged(store)


def test_a_writer_that_is_left_discards(store: LocalStore) -> None:
    with SessionWriter(store, new_id()) as writer:
        writer.write_shard([part()])
        assert staged(store)
    assert not staged(store)


def test_a_full_disk_is_a_reason(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    session_id = new_id()
    writer = SessionWriter(store, session_id)
    writer.write_shard([part()])

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("storage.artifacts.local.fsync", full)
    with pytest.raises(ServiceUnavailable, match=r"could not be written: .*No space left"):
        writer.finish(manifest(session_id, TWO_ROWS), TOKENS)
    assert not staged(store)


def test_a_full_disk_is_tried_again_while_the_stage_waits(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: list[str] = []
    create = LocalStage.create

    def full(stage: LocalStage, name: str) -> BinaryIO:
        if len(reasons) < 2:
            raise OSError(28, "No space left on device")
        return create(stage, name)

    def waits(reason: ServiceUnavailable) -> bool:
        assert isinstance(reason, StorageFull)
        reasons.append(reason.message)
        return True

    monkeypatch.setattr(LocalStage, "create", full)
    session_id = new_id()
    with SessionWriter(store, session_id) as writer:
        writer._stage.waits = waits
        writer.write_shard([part()])
        writer.finish(manifest(session_id, TWO_ROWS), TOKENS)
    assert len(reasons) == 2
    SessionReader(store, session_id).verify()


# --- reading, also what was damaged since


@pytest.fixture
def session(store: LocalStore, tensors: dict[str, torch.Tensor]) -> str:
    return store_session(store, tensors, cuts=[5])


def test_rows_that_are_not_there(store: LocalStore, session: str, subtests: pytest.Subtests) -> None:
    for start, stop in [(-1, 2), (0, ROWS + 1), (3, 2)]:
        with subtests.test(start=start, stop=stop), pytest.raises(RangeNotSatisfiable):
            SessionReader(store, session).rows("resid_post.0", start, stop)


def test_a_hook_that_is_not_there(store: LocalStore, session: str) -> None:
    reader = SessionReader(store, session)
    with pytest.raises(NotFound, match=r"no tensor mlp_out\.0 is stored; stored: resid_post\.0"):
        reader.rows("mlp_out.0", 0, 1)
    with pytest.raises(NotFound):
        reader.tensor_info("mlp_out.0")


def test_only_the_rows_are_read(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two shards of a megabyte; the rows lie on both sides of the cut."""
    session = store_session(store, {"resid_post.1": torch.randn(ROWS, 50_000)}, cuts=[5])
    reader = SessionReader(store, session)
    whole = reader.rows("resid_post.1", 0, ROWS).data
    read, lengths = store.read, []

    def counted(key: str, start: int, length: int) -> bytes:
        lengths.append(length)
        return read(key, start, length)

    monkeypatch.setattr(store, "read", counted)
    row = 4 * 50_000
    assert reader.rows("resid_post.1", 4, 6).data == whole[4 * row : 6 * row]
    assert lengths == [row, row]


def shard(store: LocalStore, session: str, number: int) -> Path:
    return store.root / "sessions" / session / f"activations-0000{number}.safetensors"


def test_damage_is_found_by_verify(store: LocalStore, session: str) -> None:
    reader = SessionReader(store, session)
    with shard(store, session, 1).open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    shard(store, session, 2).write_bytes(shard(store, session, 2).read_bytes()[:-3])
    with pytest.raises(StoreDamaged, match=r"00001.*does not have the sha256.*00002.* bytes instead of"):
        reader.verify()
    with pytest.raises(StoreDamaged):
        reader.token_ids()
    shard(store, session, 2).unlink()
    with pytest.raises(StoreDamaged, match=r"00002.* is missing"):
        reader.verify()
    with pytest.raises(StoreDamaged, match=r"missing|no stored file"):
        reader.rows("resid_post.0", 5, 6)


def rewrite(store: LocalStore, session: str, change: dict[str, Any]) -> None:
    path = store.root / "sessions" / session / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format_version": 99}, "format version 99"),
        ({"session_id": "ses_" + "b" * 32}, "it is the manifest of"),
        ({"prompt_tokens": "many"}, "cannot be read"),
    ],
)
def test_a_manifest_that_cannot_be_trusted(
    store: LocalStore, session: str, change: dict[str, Any], reason: str
) -> None:
    rewrite(store, session, change)
    with pytest.raises(StoreDamaged, match=reason):
        SessionReader(store, session).rows("resid_post.0", 0, 1)


def test_a_manifest_that_disagrees_with_the_files(store: LocalStore, session: str) -> None:
    stored = SessionReader(store, session).manifest
    first, second = stored.tensors["resid_post.0"].parts
    missing = stored.tensors["resid_post.0"].model_copy(update={"parts": [second]})
    rewrite(store, session, {"tensors": {"resid_post.0": missing.model_dump()}})
    with pytest.raises(StoreDamaged, match="do not cover rows 3:6"):
        SessionReader(store, session).rows("resid_post.0", 3, 6)
    with pytest.raises(StoreDamaged, match="row 0 is missing"):
        SessionReader(store, session).verify()
    wrong = missing.model_copy(update={"parts": [first, second], "dtype": "F16"})
    rewrite(store, session, {"tensors": {"resid_post.0": wrong.model_dump()}})
    with pytest.raises(StoreDamaged, match=r"is BF16 .* the manifest says F16"):
        SessionReader(store, session).rows("resid_post.0", 0, 1)
    elsewhere = [p.model_copy(update={"file": "../../etc/passwd"}) for p in (first, second)]
    outside = missing.model_copy(update={"parts": elsewhere})
    rewrite(store, session, {"tensors": {"resid_post.0": outside.model_dump()}})
    with pytest.raises(StoreDamaged, match="does not list"):
        SessionReader(store, session).rows("resid_post.0", 0, 1)
