"""A session's tensors, indexed over HTTP."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from actograph.client import Client, to_torch_dataset
from actograph.client.stored_session import Manifest
from actograph.contract import resources
from actograph.contract.errors import InvalidRequest, NotFound
from actograph.contract.resources import Session

WHOLE = np.arange(28, dtype="<f4").reshape(7, 4) + 100


@pytest.fixture
def session(service: Any) -> Session:
    """7 rows of float32 and of bfloat16 (all 1), and 3 of chosen tokens."""
    tensors = {
        "resid_post.1": ("F32", WHOLE),
        "attn_in.1": ("BF16", np.full((7, 4), 0x3F80, "<u2")),
        "mlp_in.1": ("F16", WHOLE[[0, 4, 6]].astype("<f2")),
        "token_ids": ("I64", np.arange(8, dtype="<i8")),
        "row_positions": ("I64", np.array([0, 4, 6], dtype="<i8")),
    }
    hooks = {
        name: resources.TensorInfo(
            shape=array.shape, dtype=dtype, position_offset=0 if name == "mlp_in.1" else None
        )
        for name, (dtype, array) in tensors.items()
        if array.ndim == 2
    }
    found: Session = service.add_session(1).model_copy(update={"hooks": hooks})
    service.sessions[found.id] = found
    service.tensors |= {(found.id, name): stored for name, stored in tensors.items()}
    return found


def test_names_and_tokens(client: Client, session: Session) -> None:
    found = client.sessions.get(session.id)
    for name in ("resid_post.1", "blocks.1.hook_resid_post", "layers_output[1]", "layer_1_output"):
        assert name in found
        assert np.array_equal(found[name][0], WHOLE[0])
    assert found.token_ids.tolist() == list(range(8))
    assert found.tokens_of("resid_post.1").tolist() == list(range(7))
    assert found.tokens_of("mlp_in.1").tolist() == [0, 4, 6]
    assert "resid_post.9" not in found
    with pytest.raises(NotFound, match=r"no tensor resid_post\.9 is stored; stored: resid_post\.1"):
        _ = found["resid_post.9"]
    with pytest.raises(IndexError):
        _ = found["resid_post.1"][7]


def test_only_the_rows_are_requested(
    service: Any, client: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = client.sessions.get(session.id)["resid_post.1"]
    service.seen.clear()
    _ = tensor[-2:]
    assert [seen.query["rows"] for seen in service.seen] == ["5:7"]
    assert tensor[7:].shape == (0, 4)
    assert len(service.seen) == 1, "no rows are no request"
    monkeypatch.setattr("actograph.client.sessions.ANSWER_BYTES", 3 * 16)
    assert np.array_equal(tensor[:], WHOLE)
    assert [s.query["rows"] for s in service.seen[1:]] == ["0:3", "3:6", "6:7"]


def test_texts_of_tokens(service: Any, client: Client, session: Session) -> None:
    texts = ["So", " 3", "+4", "=7", "\n##", "## 7", "", "."]
    segments = [{"name": "prompt", "start": 0, "stop": 5}, {"name": "answer", "start": 5, "stop": 8}]
    service.manifests[session.id] = Manifest.model_validate({"token_texts": texts, "segments": segments})
    found = client.sessions.get(session.id)
    assert found.tokens == texts
    assert [(one.name, one.stop) for one in found.segments] == [("prompt", 5), ("answer", 8)]
    assert found.at("####") == range(4, 6)
    assert found.at("7") == range(3, 4)
    assert found.at("7", -1) == range(5, 6)
    assert found.at(".") == range(7, 8)
    assert np.array_equal(found["resid_post.1"][found.at("####")], WHOLE[4:6])
    assert service.paths().count(f"/v1/activations/sessions/{session.id}/manifest") == 1
    with pytest.raises(NotFound, match="2 occurrences of '7'"):
        found.at("7", 2)
    with pytest.raises(InvalidRequest):
        found.at("")
    service.manifests[session.id] = Manifest()
    with pytest.raises(NotFound, match="without the texts"):
        client.sessions.get(session.id).at("7")


def test_rows_of_many_sessions_in_random_order(
    client: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actograph.client.torch_rows.BLOCK_ROWS", 3)
    monkeypatch.setattr("actograph.client.torch_rows.BLOCKS", 2)
    dataset = to_torch_dataset([client.sessions.get(session.id)] * 2, "resid_post.1", seed=1)
    passes = [[row[0].item() for row in dataset] for _ in range(2)]
    due = sorted([*WHOLE[:, 0]] * 2)
    assert [sorted(one) for one in passes] == [due, due]
    assert passes[0] != passes[1]
    # unmixed, each session's blocks of 3, 3 and 1 rows have 4 pairs of neighbours
    assert sum(after - before == 4 for before, after in pairwise(passes[0])) < 8
    assert len(dataset) == 14
    again = to_torch_dataset([client.sessions.get(session.id)] * 2, "resid_post.1", seed=1)
    assert [row[0].item() for row in again] == passes[0]
    plain = to_torch_dataset([client.sessions.get(session.id)], "layers_output[1]", shuffle=False)
    assert [row[0].item() for row in plain] == WHOLE[:, 0].tolist()
    with pytest.raises(NotFound):
        to_torch_dataset([client.sessions.get(session.id)], "embed")
