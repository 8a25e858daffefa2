"""One number per token, against numpy on whole tensors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.contract.errors import InvalidRequest, NotFound
from storage.artifacts.local import LocalStore
from storage.index.ids import new_session_id
from storage.sessions import row_values
from storage.sessions.manifest import SessionManifest, StoredTensor
from storage.sessions.reader import SessionReader
from storage.sessions.row_values import Statistic, Values
from storage.sessions.value_cache import ValueCache
from storage.sessions.writer import SessionWriter, TensorRows

WIDTH, PROMPT, GENERATED = 16, 1500, 800
RAN = PROMPT + GENERATED - 1
RNG = np.random.default_rng(7)
FULL = RNG.normal(size=(RAN, WIDTH)).astype("<f4")
LATE = RNG.normal(size=(RAN - PROMPT, WIDTH)).astype("<f4")
LATE_BITS = (LATE.view("<u4") >> 16).astype("<u2")
LATE_STORED = (LATE_BITS.astype("<u4") << 16).view("<f4")
CHOSEN = [3, 1023, 1024, 2000]
FEW = RNG.normal(size=(len(CHOSEN), WIDTH)).astype("<f2")
LOGITS = RNG.normal(scale=3, size=(RAN, WIDTH)).astype("<f4")
IDS = RNG.integers(0, WIDTH, PROMPT + GENERATED).tolist()


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> SessionReader:
    """Rows of every token, of the generated ones as bfloat16, of chosen ones as float16; and a mean."""
    store, session_id = LocalStore(tmp_path_factory.mktemp("store")), new_session_id()
    stored: dict[str, StoredTensor] = {
        "embed": StoredTensor(shape=FULL.shape, dtype="F32"),
        "mlp_in.2": StoredTensor(shape=LATE.shape, dtype="BF16", first_row=PROMPT),
        "attn_in.0": StoredTensor(shape=FEW.shape, dtype="F16", first_row=3, position_offset=0),
        "logits": StoredTensor(shape=LOGITS.shape, dtype="F32"),
        "mlp_out.1": StoredTensor(shape=(1, WIDTH), dtype="F32", summary="mean", over=RAN),
        "resid_mid.1": StoredTensor(shape=FULL.shape, dtype="F8_E4M3"),
    }
    manifest = SessionManifest(
        session_id=session_id, job_id="job_1", sample_id="smp_1", sample_index=0, model="m", capture={},
        capture_sha256="0" * 64, dtype="model", prompt_tokens=PROMPT, generated_tokens=GENERATED, seed=0,
        created_at=0, tensors=stored,
    )  # fmt: skip
    with SessionWriter(store, session_id) as writer:
        writer.write_shard(
            [
                TensorRows("embed", "F32", FULL.shape, 0, FULL),
                TensorRows("mlp_in.2", "BF16", LATE.shape, PROMPT, LATE_BITS),
                TensorRows("attn_in.0", "F16", FEW.shape, 3, FEW, tuple(CHOSEN)),
                TensorRows("logits", "F32", LOGITS.shape, 0, LOGITS),
                TensorRows("mlp_out.1", "F32", (1, WIDTH), 0, FULL[:1]),
                TensorRows("resid_mid.1", "F8_E4M3", FULL.shape, 0, bytes(FULL.size)),
            ]
        )
        writer.finish(manifest, IDS, CHOSEN)
    return SessionReader(store, session_id)


@pytest.fixture
def cache(tmp_path: Path) -> ValueCache:
    return ValueCache(tmp_path)


def placed(tokens: Any, values: Any) -> Values:
    found = np.full(len(IDS), np.nan, dtype="<f4")
    found[tokens] = values
    return found


def read(reader: SessionReader, hook: str, statistic: Statistic, cache: ValueCache) -> Values:
    """All tokens at once; a second time from the cache, and in odd windows without one, bit by bit equal."""
    whole = row_values.values(reader, hook, statistic, (0, len(IDS)), cache)
    assert row_values.values(reader, hook, statistic, (0, len(IDS)), cache).tobytes() == whole.tobytes()
    for start, stop in ((0, 0), (1000, 1030), (2047, 2049), (len(IDS) - 1, len(IDS))):
        window = row_values.values(reader, hook, statistic, (start, stop), cache)
        assert window.tobytes() == whole[start:stop].tobytes()
    return whole


@pytest.mark.parametrize(
    ("hook", "tokens", "rows"),
    [
        ("embed", range(RAN), FULL),
        ("mlp_in.2", range(PROMPT, RAN), LATE_STORED),
        ("attn_in.0", CHOSEN, FEW.astype("<f4")),
    ],
)
def test_values_are_those_of_numpy(
    reader: SessionReader, cache: ValueCache, hook: str, tokens: Any, rows: Any
) -> None:
    info, tokens = reader.tensor_info(hook), list(tokens)
    wide, direction = rows.astype(np.float64), np.arange(WIDTH, dtype=np.float64) - 3
    one = tokens[len(tokens) // 2]
    other = wide[tokens.index(one)]
    lengths = np.linalg.norm(wide, axis=1)
    expected = {
        row_values.norm(): lengths,
        row_values.channel(5, info): wide[:, 5],
        row_values.projection(direction.tolist(), info): wide @ direction / np.linalg.norm(direction),
        row_values.cosine(reader, hook, one): wide @ other / lengths / np.linalg.norm(other),
    }
    for statistic, values in expected.items():
        found = read(reader, hook, statistic, cache)
        np.testing.assert_allclose(found, placed(tokens, values), rtol=1e-6, atol=1e-6)


def test_log_probabilities_are_those_of_the_next_token(reader: SessionReader, cache: ValueCache) -> None:
    wide = LOGITS.astype(np.float64)
    every = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    expected = every[np.arange(RAN), IDS[1:]]
    found = read(reader, "logits", row_values.log_probability(IDS), cache)
    np.testing.assert_allclose(found, placed(range(1, RAN + 1), expected), rtol=1e-6, atol=1e-6)


def test_impossible_values_are_refused(reader: SessionReader, cache: ValueCache) -> None:
    info = reader.tensor_info("embed")
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: row_values.channel(WIDTH, info), "channels 0 to 15"),
        (lambda: row_values.projection([1.0], info), "the vector has 1 numbers"),
        (lambda: row_values.projection([0.0] * WIDTH, info), "no direction"),
        (lambda: row_values.cosine(reader, "mlp_in.2", 0), "no row of token 0"),
        (lambda: row_values.cosine(reader, "mlp_out.1", 0), "no row of token 0"),
    ]
    for make, says in refused:
        with pytest.raises(InvalidRequest, match=says):
            make()
    with pytest.raises(InvalidRequest, match="one row for all tokens"):
        row_values.values(reader, "mlp_out.1", row_values.norm(), (0, 5), cache)
    with pytest.raises(InvalidRequest, match="cannot represent F8_E4M3"):
        row_values.values(reader, "resid_mid.1", row_values.norm(), (0, 5), cache)
    with pytest.raises(NotFound):
        row_values.values(reader, "embed.9", row_values.norm(), (0, 5), cache)


def test_zeros_and_infinities_give_values(cache: ValueCache) -> None:
    rows = np.array([[0, 0], [np.inf, 1], [3e38, 3e38]])
    norms = row_values.norm().reduce(rows, range(3))
    np.testing.assert_array_equal(norms[:2], [0, np.inf])
    assert np.isfinite(norms[2])


def test_the_cache_is_bounded_and_keeps_the_newest(tmp_path: Path) -> None:
    cache = ValueCache(tmp_path, max_bytes=64_000)
    for number in range(200):
        cache.put(f"k{number}", bytes(1000))
    kept = [number for number in range(200) if cache.get(f"k{number}") is not None]
    assert kept == list(range(200 - len(kept), 200))
    assert len(kept) <= 64 + 64


def test_a_broken_cache_fails_no_reader(tmp_path: Path, reader: SessionReader) -> None:
    cache = ValueCache(tmp_path)
    cache.put("a", b"b")
    assert (cache.get("a"), cache.get("b")) == (b"b", None)
    (tmp_path / "values.db").write_bytes(b"not a database" * 100)
    assert cache.get("a") is None
    found = row_values.values(reader, "embed", row_values.norm(), (0, 3), cache)
    np.testing.assert_allclose(found, np.linalg.norm(FULL[:3], axis=1), rtol=1e-6)
    nowhere = ValueCache(tmp_path / "missing")
    nowhere.put("a", b"b")
    assert nowhere.get("a") is None


def test_a_damaged_cache_is_begun_anew(tmp_path: Path) -> None:
    cache = ValueCache(tmp_path)
    file = tmp_path / "values.db"
    cache.put("a", bytes(100_000))
    whole = file.read_bytes()
    for damaged in (b"not a database" * 100, whole[:4096] + b"\xff" * (len(whole) - 4096)):
        file.write_bytes(damaged)
        cache.put("b", b"first")  # finds the damage, or get does
        assert cache.get("a") is None
        cache.put("b", b"second")
        assert ValueCache(tmp_path).get("b") == b"second"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["values.db"]
