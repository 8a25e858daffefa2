"""A session's tensors, indexed: over HTTP, and from the store's folder."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actograph.client import Client
from actograph.contract.errors import InvalidRequest, NotFound, StoreDamaged
from actograph.contract.resources import Session

WHOLE = np.arange(28, dtype=np.float32).reshape(7, 4) + 100
INDICES = [
    0, -1, np.int64(3), slice(None), slice(3, 5), slice(-3, None), slice(6, 2), slice(None, None, 3),
    slice(None, None, -1), slice(5, 1, -2), slice(0, 99),
]  # fmt: skip


@pytest.fixture(params=["plain", "local"])
def client(request: pytest.FixtureRequest) -> Client:
    found: Client = request.getfixturevalue(request.param)
    return found


def test_indexing_is_numpy_indexing(client: Client, session: Session, subtests: pytest.Subtests) -> None:
    for index in INDICES:
        with subtests.test(index=index):
            got = client.sessions.get(session.id)["resid_post.1"][index]
            assert np.array_equal(got, WHOLE[index])
            assert got.shape == WHOLE[index].shape


def test_torch_tensors_are_indexed_alike(client: Client, session: Session, subtests: pytest.Subtests) -> None:
    for index in INDICES:
        with subtests.test(index=index):
            got = client.sessions.get(session.id)["resid_post.1"].torch(index)
            assert isinstance(got, torch.Tensor)
            assert np.array_equal(got.numpy(), WHOLE[index])


def test_bfloat16_is_float32_in_numpy_and_itself_in_torch(client: Client, session: Session) -> None:
    tensor = client.sessions.get(session.id)["attn_in.1"]
    assert (tensor.shape, tensor.stored_dtype, tensor.dtype) == ((7, 4), "BF16", np.dtype(np.float32))
    assert tensor[2:4].tolist() == np.ones((2, 4)).tolist()
    assert tensor.torch(slice(2, 4)).equal(torch.ones(2, 4, dtype=torch.bfloat16))
    assert tensor.torch().shape == (7, 4)
    assert np.asarray(tensor).shape == (7, 4)


def test_aliases(plain: Client, session: Session) -> None:
    found = plain.sessions.get(session.id)
    for name in ("resid_post.1", "blocks.1.hook_resid_post", "layers_output[1]", "layer_1_output"):
        assert name in found
        assert np.array_equal(found[name][0], WHOLE[0])


def test_token_numbers(client: Client, session: Session) -> None:
    found = client.sessions.get(session.id)
    assert found.token_ids().tolist() == list(range(8))
    assert found.tokens_of("resid_post.1").tolist() == list(range(7))
    assert found.tokens_of("mlp_in.1").tolist() == [0, 4, 6]


def test_names_that_are_not_there(client: Client, session: Session) -> None:
    found = client.sessions.get(session.id)
    assert "resid_post.9" not in found
    with pytest.raises(NotFound, match=r"no tensor resid_post\.9 is stored; the session has resid_post\.1"):
        _ = found["resid_post.9"]
    with pytest.raises(IndexError):
        _ = found["resid_post.1"][7]


def test_over_http_only_the_rows_are_asked_for(service: Any, plain: Client, session: Session) -> None:
    tensor = plain.sessions.get(session.id)["resid_post.1"]
    service.seen.clear()
    _ = tensor[-2:]
    assert [seen.query["rows"] for seen in service.seen] == ["5:7"]
    assert tensor[7:].shape == (0, 4)
    assert len(service.seen) == 1, "no rows are no request"


def test_long_reads_take_several_answers(
    plain: Client, session: Session, service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from actograph.client import sessions

    monkeypatch.setattr(sessions, "ANSWER_BYTES", 3 * 16)
    tensor = plain.sessions.get(session.id)["resid_post.1"]
    assert np.array_equal(tensor[:], WHOLE)
    assert [s.query["rows"] for s in service.seen if "rows" in s.query] == ["0:3", "3:6", "6:7"]


def test_from_the_folder_only_the_rows_are_read(
    service: Any, local: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = local.sessions.get(session.id)["resid_post.1"]
    service.seen.clear()
    _ = tensor[0]
    read: list[int] = []
    pread = os.pread

    def counted(fd: int, length: int, offset: int) -> bytes:
        read.append(length)
        return pread(fd, length, offset)

    monkeypatch.setattr(os, "pread", counted)
    _ = tensor[2:5]
    assert read == [3 * 4 * 4]
    assert service.seen == []


def test_a_file_url_is_a_folder(service: Any, store: Path, session: Session) -> None:
    with Client(service.url, "", store=store.as_uri()) as client:
        assert np.array_equal(client.sessions.get(session.id)["resid_post.1"][1], WHOLE[1])


def test_stores_that_are_none(service: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="ACTOGRAPH_ARTIFACT_URL"):
        Client(service.url, "", store=tmp_path / "nowhere")
    with pytest.raises(InvalidRequest, match="another machine"):
        Client(service.url, "", store="file://elsewhere/folder")
    with pytest.raises(InvalidRequest, match="no bucket"):
        Client(service.url, "", store="s3://")


def test_a_store_that_is_another_services_is_told(local: Client, session: Session, store: Path) -> None:
    tensor = local.sessions.get(session.id)["resid_post.1"]
    file = store / "sessions" / session.id / "activations.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(StoreDamaged, match="the index says"):
        _ = tensor[0]
    file.unlink()
    with pytest.raises(NotFound, match="is this the store of this service"):
        _ = tensor[0]


def test_handles_equal_what_the_service_said(service: Any, plain: Client, session: Session) -> None:
    first, second = plain.sessions.get(session.id), plain.sessions.get(session.id)
    assert first == second == session
    assert len({first, second}) == 1
    assert first != session.model_copy(update={"pinned": True})


def test_a_session_downloads_itself(plain: Client, session: Session, tmp_path: Path) -> None:
    folder = plain.sessions.get(session.id).download(tmp_path / "pulled")
    assert sorted(path.name for path in folder.iterdir()) == ["activations.safetensors", "manifest.json"]
