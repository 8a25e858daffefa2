"""A session's tensors, indexed over HTTP."""

import re
from itertools import pairwise

import numpy as np
import pytest

from actograph.client import Client, to_torch_dataset
from actograph.client.session_view import DEFAULT_TOKENS
from actograph.contract.errors import InvalidRequest, NotFound
from storage.sessions.writer import TensorRows
from tests.integration.api.client.conftest import Wire
from tests.integration.api.conftest import Service

WHOLE = np.arange(48, dtype="<f4").reshape(6, 8) + 100
CHOSEN = (0, 3, 5)


@pytest.fixture
def session_id(service: Service) -> str:
    """6 rows of float32 and of bfloat16 (all 1), and 3 of chosen tokens."""
    made = service.finish(
        *service.claim(service.submit()),
        tensors={
            "resid_post.1": TensorRows("resid_post.1", "F32", (6, 8), 0, WHOLE),
            "attn_in.1": TensorRows("attn_in.1", "BF16", (6, 8), 0, np.full((6, 8), 0x3F80, "<u2")),
            "mlp_in.1": TensorRows("mlp_in.1", "F16", (3, 8), 0, WHOLE[[*CHOSEN]].astype("<f2"), CHOSEN),
        },
    )
    assert made is not None
    return made


def test_names_and_tokens(client: Client, session_id: str) -> None:
    found = client.sessions.get(session_id)
    for name in ("resid_post.1", "blocks.1.hook_resid_post", "layers_output[1]", "layer_1_output"):
        assert name in found
        assert np.array_equal(found[name][0], WHOLE[0])
    assert np.array_equal(found["attn_in.1"][:], np.ones((6, 8)))
    assert np.array_equal(found["mlp_in.1"][:], WHOLE[[*CHOSEN]])
    assert found.token_ids.tolist() == list(range(100, 107))
    assert found.tokens_of("resid_post.1").tolist() == list(range(6))
    assert found.tokens_of("mlp_in.1").tolist() == [*CHOSEN]
    assert [(one.name, one.stop) for one in found.segments] == [("prompt", 3), ("answer", 7)]
    assert "resid_post.9" not in found
    with pytest.raises(NotFound, match=r"no tensor resid_post\.9 is stored; stored: resid_post\.1"):
        _ = found["resid_post.9"]
    with pytest.raises(IndexError):
        _ = found["resid_post.1"][6]
    with pytest.raises(NotFound, match="without the texts"):
        found.at("7")


def test_texts_of_tokens(service: Service, wire: Wire, client: Client) -> None:
    texts = ["So", " 3", "+4", "=7", "\n##", "## 7", "."]
    rows = {"resid_post.1": TensorRows("resid_post.1", "F32", (6, 8), 0, WHOLE)}
    made = service.finish(*service.claim(service.submit()), tensors=rows, token_texts=texts)
    found = client.sessions.get(str(made))
    wire.seen.clear()
    assert found.tokens == texts
    assert found.at("####") == range(4, 6)
    assert found.at("7") == range(3, 4)
    assert found.at("7", -1) == range(5, 6)
    assert found.at(".") == range(6, 7)
    assert np.array_equal(found["resid_post.1"][found.at("####")], WHOLE[4:6])
    assert wire.paths().count(f"/v1/activations/sessions/{made}/manifest") == 1
    with pytest.raises(NotFound, match="2 occurrences of '7'"):
        found.at("7", 2)
    with pytest.raises(InvalidRequest):
        found.at("")


def test_only_the_rows_are_requested(
    wire: Wire, client: Client, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = client.sessions.get(session_id)["resid_post.1"]
    wire.seen.clear()
    _ = tensor[-2:]
    assert [seen.query["rows"] for seen in wire.seen] == ["4:6"]
    assert tensor[6:].shape == (0, 8)
    assert len(wire.seen) == 1, "no rows are no request"
    monkeypatch.setattr("actograph.client.sessions.ANSWER_BYTES", 3 * 32)
    assert np.array_equal(tensor[1:], WHOLE[1:])
    assert [seen.query["rows"] for seen in wire.seen[1:]] == ["1:4", "4:6"]


def test_rows_of_many_sessions_in_random_order(
    client: Client, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actograph.client.torch_rows.BLOCK_ROWS", 3)
    monkeypatch.setattr("actograph.client.torch_rows.BLOCKS", 2)
    dataset = to_torch_dataset([client.sessions.get(session_id)] * 2, "resid_post.1", seed=1)
    passes = [[row[0].item() for row in dataset] for _ in range(2)]
    due = sorted([*WHOLE[:, 0]] * 2)
    assert [sorted(one) for one in passes] == [due, due]
    assert passes[0] != passes[1]
    # unmixed, each session's blocks of 3 rows have 4 pairs of neighbours
    assert sum(after - before == 8 for before, after in pairwise(passes[0])) < 8
    assert len(dataset) == 12
    again = to_torch_dataset([client.sessions.get(session_id)] * 2, "resid_post.1", seed=1)
    assert [row[0].item() for row in again] == passes[0]
    plain = to_torch_dataset([client.sessions.get(session_id)], "layers_output[1]", shuffle=False)
    assert [row[0].item() for row in plain] == WHOLE[:, 0].tolist()
    with pytest.raises(NotFound):
        to_torch_dataset([client.sessions.get(session_id)], "embed")


def test_a_view_of_a_large_session_reads_few_rows(service: Service, wire: Wire, client: Client) -> None:
    count, width = 5000, 2048
    rows = TensorRows("resid_post.1", "F32", (count, width), 0, np.ones((count, width), "<f4"))
    made = service.finish(
        *service.claim(service.submit()),
        tensors={"resid_post.1": rows},
        token_ids=range(count + 1),
        token_texts=["\U0001f600" * 500] * (count + 1),
    )
    found = client.sessions.get(str(made))
    wire.seen.clear()
    html = found._repr_html_()
    first = count + 1 - DEFAULT_TOKENS
    read = [seen.query["rows"] for seen in wire.seen if "rows" in seen.query]
    assert sorted(read) == [f"{first}:{count}", f"{first}:{count + 1}"], "rows and ids of the last tokens"
    assert len(html) < 250_000
    plain = re.sub(r"<[^>]+>", "", html)
    assert f"Tokens {first} to {count} of {count + 1}" in plain
    assert "Session ses_" in plain and "rows of resid_post.1, 2.1 MB" in plain
    wire.seen.clear()
    assert "norms of rows 0 to 255" in found["resid_post.1"]._repr_html_()
    assert [seen.query["rows"] for seen in wire.seen] == ["0:256"]
    with pytest.raises(InvalidRequest, match="5000 tokens are too many for a view; show 2048 at most"):
        found.show(tokens=range(5000))
    with pytest.raises(InvalidRequest, match="1000 tokens with attention are too many"):
        found.show(tokens=range(1000), attention=(0, 0))
    for stored in service.services.settings.home.rglob(f"{made}/activations*"):
        stored.unlink()
    assert "Its rows cannot be read" in found["resid_post.1"]._repr_html_()
    assert "Its tokens cannot be shown" in client.sessions.get(str(made))._repr_html_()
