"""/v1/activations/sessions/{id}/attention/{layer}: from stored queries and keys."""

import io
from typing import Any

import numpy as np
import pytest

from actograph.contract.models import LayerHeads
from api.reading import attention as route
from storage.sessions.writer import TensorRows
from tests.integration.api.conftest import Service

BASE = "/v1/activations/sessions"
SINKS = [0.0, 1.0, -1.0, 2.0]
HEADS = LayerHeads(heads=4, key_heads=2, width=8, scale=0.25, window=4, softcap=3.0, sinks=SINKS)
ROWS = {
    name: np.random.default_rng(seed).normal(size=(6, width)).astype("<f4")
    for seed, (name, width) in enumerate([("q", 32), ("k", 16)])
}


def expected() -> np.ndarray[Any, Any]:
    """[rows, heads, tokens], number by number."""
    made = np.zeros((6, 4, 6))
    for head in range(4):
        for row in range(6):
            seen = range(max(0, row - 3), row + 1)
            q = ROWS["q"][row, head * 8 : head * 8 + 8].astype(float)
            k = [ROWS["k"][key, head // 2 * 8 : head // 2 * 8 + 8].astype(float) for key in seen]
            shares = np.exp([3 * np.tanh(q @ one * 0.25 / 3) for one in k])
            made[row, head, seen.start : seen.stop] = shares / (shares.sum() + np.exp(SINKS[head]))
    return made


@pytest.fixture
def session_id(service: Service) -> str:
    tensors = {
        f"{name}.1": TensorRows(f"{name}.1", "F32", (6, rows.shape[1]), 0, rows)
        for name, rows in ROWS.items()
    }
    tensors["q.2"] = TensorRows("q.2", "F32", (6, 32), 0, ROWS["q"])
    tensors |= {
        "q.0": TensorRows("q.0", "F32", (6, 32), 0, ROWS["q"]),
        "k.0": TensorRows("k.0", "F32", (3, 16), 3, ROWS["k"][3:]),
        "q.3": TensorRows("q.3", "F32", (6, 32), 0, ROWS["q"]),
        "k.3": TensorRows("k.3", "F32", (6, 16), 0, ROWS["k"]),
    }
    wide = HEADS.model_copy(update={"window": None})
    unknown = HEADS.model_copy(update={"unproved": "its mask is made by chunks"})
    made = service.finish(
        *service.claim(service.submit()), tensors=tensors, attention={0: wide, 1: HEADS, 2: HEADS, 3: unknown}
    )
    assert made is not None
    return made


def test_attention_is_computed_from_stored_rows(
    service: Service, session_id: str, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setattr("actograph.attention_patterns._BLOCK", 30)  # a row or two at a time
    due = expected()
    for query, wanted in [
        ("", due),
        ("?head=3", due[:, 3]),
        ("?rows=2:5", due[2:5, :, :5]),
        ("?rows=4:&head=0", due[4:, 0]),
        ("?rows=3:3", due[3:3, :, :3]),
    ]:
        with subtests.test(query):
            answer = service.client.get(f"{BASE}/{session_id}/attention/1{query}")
            assert answer.status_code == 200, answer.text
            got = np.load(io.BytesIO(answer.content), allow_pickle=False)
            assert got.dtype == np.float32 and got.shape == wanted.shape
            assert np.abs(got - wanted).max(initial=0) < 1e-6
            assert len(answer.content) == int(answer.headers["content-length"])
            as_json = {**service.client.get(answer.request.url.copy_add_param("format", "json")).json()}
            assert as_json["shape"] == list(wanted.shape)
            assert np.abs(np.reshape(as_json["data"], wanted.shape) - wanted).max(initial=0) < 1e-6
    # only the keys that the window shows are needed: token 3 on, of the tokens from 6 on
    answer = service.client.get(f"{BASE}/{session_id}/attention/0?rows=3:5")
    assert answer.status_code == 404 and "no row of k.0 for token 0" in answer.text


def test_what_cannot_be_computed_is_refused(
    service: Service, session_id: str, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for path, status, said in [
        ("5", 404, "the session has no q.5"),
        ("2", 404, "the session has no k.2"),
        ("3", 422, "its mask is made by chunks"),
        ("1?head=4", 422, "layer 1 has heads 0 to 3"),
        ("1?rows=2:9", 404, "no row of q.1 for token 6"),
        ("1?rows=4:2", 422, "must not be smaller"),
        ("1?rows=a", 422, "is not start:stop"),
        ("1?format=safetensors", 422, "npy"),
    ]:
        with subtests.test(path):
            answer = service.client.get(f"{BASE}/{session_id}/attention/{path}")
            assert answer.status_code == status, answer.text
            assert said in answer.json()["error"]["message"]
    monkeypatch.setattr(route, "MAX_VALUES", 143)
    answer = service.client.get(f"{BASE}/{session_id}/attention/1")
    assert "144 weights" in answer.json()["error"]["message"]
    assert service.client.get(f"{BASE}/{session_id}/attention/1?head=2").status_code == 200
