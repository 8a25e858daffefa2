"""Tokens and values of sessions over HTTP: numbers against numpy, texts against the tokenizer."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import sqlalchemy as sa
from tokenizers import Tokenizer

from api.reading import session_logprobs
from storage.queue import model_tokenizers
from storage.sessions.writer import TensorRows
from storage.tables.models import SampleRow

if TYPE_CHECKING:
    from tests.integration.api.conftest import Problem, Service

pytestmark = pytest.mark.integration

BASE = "/v1/activations/sessions"
FULL = np.linspace(-1, 1, 48, dtype="<f4").reshape(6, 8)
LATE = FULL[3:] * np.float32(2)
IDS = list(range(100, 107))


@pytest.fixture
def session_id(service: "Service") -> str:
    tensors = {
        "resid_post.1": TensorRows("resid_post.1", "F32", (6, 8), 0, FULL),
        "mlp_in.2": TensorRows("mlp_in.2", "F32", (3, 8), 3, LATE),
    }
    made = service.finish(*service.claim(service.submit()), tensors=tensors)
    assert made is not None
    return made


def values(service: "Service", session_id: str, **params: Any) -> Any:
    answer = service.client.get(f"{BASE}/{session_id}/values", params=params)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/octet-stream"
    shape = [int(size) for size in answer.headers["x-tensor-shape"].split(",")]
    return np.frombuffer(answer.content, "<f4").reshape(shape)


def test_values_of_several_hooks_are_one_matrix(service: "Service", session_id: str) -> None:
    nan = [np.nan]
    norms = [*np.linalg.norm(FULL, axis=1), *nan]
    late = [*nan * 3, *np.linalg.norm(LATE, axis=1), *nan]
    found = values(service, session_id, hook=["blocks.1.hook_resid_post", "mlp_in.2"])
    np.testing.assert_allclose(found, [norms, late], rtol=1e-6)
    found = values(service, session_id, hook="mlp_in.2", tokens="2:5")
    np.testing.assert_allclose(found, [late[2:5]], rtol=1e-6)
    found = values(service, session_id, hook="resid_post.1", of="channel", channel=3)
    np.testing.assert_array_equal(found[0, :6], FULL[:, 3])
    found = values(service, session_id, hook="resid_post.1", of="cosine", token=2)
    assert found[0, 2] == 1
    assert (service.services.settings.home / "values.db").exists()


def test_values_along_a_stored_vector(service: "Service", session_id: str, problem: "Problem") -> None:
    def store(numbers: list[float]) -> str:
        body = {"name": "v", "hook": "resid_post.1", "vector": numbers}
        return str(service.client.post("/v1/interventions", json=body).json()["id"])

    vector = [1.0, -2.0, 0.5, 0, 0, 3, 0, 1]
    vector_id = store(vector)
    found = values(service, session_id, hook="resid_post.1", of="projection", vector_id=vector_id)
    np.testing.assert_allclose(found[0, :6], FULL @ vector / np.linalg.norm(vector), rtol=1e-5)
    params = {"hook": "resid_post.1", "of": "projection"}
    url = f"{BASE}/{session_id}/values"
    problem(service.client.get(url, params=params), 422, pointer="/vector_id")
    narrow = params | {"vector_id": store([1.0])}
    problem(service.client.get(url, params=narrow), 422, says="the vector has 1 numbers, the rows have 8")
    missing = params | {"vector_id": "vec_" + "0" * 32}
    problem(service.client.get(url, params=missing), 404)


@pytest.mark.parametrize(
    ("params", "refusal"),
    [
        ({}, (422, "at least one hook")),
        ({"hook": "embed"}, (404, "no tensor embed")),
        ({"hook": "<script>"}, (404, "no tensor")),
        ({"hook": "mlp_in.2", "of": "size"}, (422, "of")),
        ({"hook": "mlp_in.2", "of": "channel"}, (422, "channel is required")),
        ({"hook": "mlp_in.2", "of": "channel", "channel": 8}, (422, "channels 0 to 7")),
        ({"hook": "mlp_in.2", "of": "channel", "channel": -1}, (422, "channel")),
        ({"hook": "mlp_in.2", "of": "cosine", "token": 1}, (422, "no row of token 1")),
        ({"hook": "mlp_in.2", "tokens": "1-2"}, (422, "start:stop")),
        ({"hook": "mlp_in.2", "tokens": "5:8"}, (416, "tokens 0:7")),
        ({"of": "logprob"}, (422, "no log probabilities are stored")),
    ],
)
def test_bad_requests_are_refused(
    service: "Service", session_id: str, problem: "Problem", params: dict[str, Any], refusal: tuple[int, str]
) -> None:
    status, says = refusal
    problem(service.client.get(f"{BASE}/{session_id}/values", params=params), status, says=says)


def test_stored_log_probabilities_belong_to_their_tokens(service: "Service", session_id: str) -> None:
    stored = [{"token": "x", "logprob": -float(n), "bytes": None} for n in range(4)]
    with service.database.write() as session:
        sample = session.scalars(sa.select(SampleRow).where(SampleRow.session_id == session_id)).one()
        sample.logprobs = stored
    assert service.client.get(f"{BASE}/{session_id}/tokens").json()["has_logprobs"] is True
    found = values(service, session_id, of="logprob")
    np.testing.assert_array_equal(found, [[np.nan] * 3 + [0, -1, -2, -3]])


def test_log_probabilities_are_placed_without_doubt_or_not_at_all() -> None:
    def placed(count: int, ends: frozenset[int] | None) -> list[float] | None:
        stored = [{"logprob": float(n)} for n in range(count)]
        found = session_logprobs.placed(stored, [5, 6, 7, 9, 8], 2, ends)
        return None if found is None else found.tolist()

    nan = pytest.approx(np.nan, nan_ok=True)
    assert placed(3, None) == [nan, nan, 0, 1, 2]
    assert placed(5, None) == [0, 1, 2, 3, 4]
    assert placed(2, frozenset({9})) == [nan, nan, 0, nan, 1]
    assert placed(2, None) is None
    assert placed(4, frozenset({9})) is None


def test_without_a_tokenizer_tokens_are_ids(service: "Service", session_id: str) -> None:
    found = service.client.get(f"{BASE}/{session_id}/tokens").json()
    assert found["ids"] == IDS
    assert (found["texts"], found["has_logprobs"]) == (None, False)
    assert "no worker has stored the tokenizer" in found["no_texts"]
    assert (found["start"], found["total"], found["prompt_tokens"]) == (0, 7, 3)
    window = service.client.get(f"{BASE}/{session_id}/tokens", params={"tokens": "2:4"}).json()
    assert (window["ids"], window["start"], window["total"]) == ([102, 103], 2, 7)
    with service.database.write() as session:
        model_tokenizers.keep(session, "demo", {"tokenizer": "{}", "special_tokens": {}})
    found = service.client.get(f"{BASE}/{session_id}/tokens").json()
    assert found["texts"] is None
    assert "cannot spell" in found["no_texts"]


def test_texts_are_those_of_the_stored_tokenizer(service: "Service", session_id: str, shared: Path) -> None:
    definition = (shared / "models" / "tiny-qwen3" / "tokenizer.json").read_text()
    with service.database.write() as session:
        model_tokenizers.keep(session, "demo", {"tokenizer": definition, "special_tokens": {}})
    expected = Tokenizer.from_str(definition).decode(IDS, skip_special_tokens=False)
    for _ in range(2):  # the second time from the cache
        found = service.client.get(f"{BASE}/{session_id}/tokens").json()
        assert "".join(found["texts"]) == expected
        assert len(found["texts"]) == len(IDS)
    window = service.client.get(f"{BASE}/{session_id}/tokens", params={"tokens": "2:4"}).json()
    assert window["texts"] == found["texts"][2:4]


def test_values_without_the_cache_are_the_same(service: "Service", session_id: str) -> None:
    first = values(service, session_id, hook="resid_post.1")
    (service.services.settings.home / "values.db").unlink()
    assert values(service, session_id, hook="resid_post.1").tobytes() == first.tobytes()
