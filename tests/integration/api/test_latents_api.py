"""Stored latents by every reader: the client, folders, routes, matrices, analyses and the page."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.client import ApiError, Client, open_folder
from actograph.contract.analyses import SessionQuery
from actograph.contract.errors import InvalidRequest, NotFound
from storage.analyses import queries
from storage.sessions.writer import TensorRows
from tests.integration.api.conftest import Service
from worker.analysis.blocks import blocks

LATENTS = 50
NAME = "sae:res-1"
#: two latents of each of six tokens; token 2 has one alone, token 5 none; latent 0 is one like any other
NUMBERS = np.array([[7, 3], [0, 49], [0, -1], [3, 7], [12, 0], [-1, -1]], np.int32)
VALUES = np.array([[4, 2], [3, 1], [5, 0], [6, 5], [2, 1], [0, 0]], np.float32)


def due(scale: float = 1.0) -> Any:
    found = np.zeros((6, LATENTS), np.float32)
    for token, (numbers, values) in enumerate(zip(NUMBERS, VALUES, strict=True)):
        for number, value in zip(numbers, values, strict=True):
            if number >= 0:
                found[token, number] = value * scale
    return found


@pytest.fixture
def job_id(service: Service) -> str:
    """A job of four sessions with latents and rows of a hook; the last one has no latents."""
    service.load_model()
    job_id = service.submit(inputs=[{"prompt": f"prompt {i}"} for i in range(4)])
    for place, lease in enumerate(service.claim(job_id, 4)):
        rows = np.random.default_rng(place).normal(size=(6, 8)).astype("<f4")
        tensors = {"resid_post.1": TensorRows("resid_post.1", "F32", (6, 8), 0, rows)}
        if place < 3:
            indices, values = f"{NAME}.indices", f"{NAME}.values"
            tensors[indices] = TensorRows(indices, "I32", (6, 2), 0, NUMBERS)
            tensors[values] = TensorRows(values, "F32", (6, 2), 0, VALUES * (place + 1))
        service.finish(lease, tensors=tensors, latents=LATENTS, correct=place == 0)
    return job_id


def sessions_of(client: Client, job_id: str) -> list[Any]:
    return sorted(client.jobs.get(job_id).sessions(), key=lambda one: one.sample_index)


def test_latents_are_read_sparse_and_dense(service: Service, url: str, job_id: str, tmp_path: Path) -> None:
    with Client(url) as client:
        first, second, *_, last = sessions_of(client, job_id)
        for session in (first, open_folder(first.download(tmp_path))):
            found = session.latents("res-1")
            assert np.array_equal(found.indices, NUMBERS) and np.array_equal(found.values, VALUES)
            assert found.indices.dtype == np.int32 and len(found) == 6 and found.size == LATENTS
            assert np.array_equal(found.dense(), due())
            assert found.of(0).tolist() == [0, 3, 5, 0, 1, 0], "and nothing of what is absent"
            with pytest.raises(IndexError, match="latents 0 to 49"):
                found.of(50)
            whole = session[NAME]
            assert whole.shape == (6, LATENTS) and whole.dtype == np.float32
            assert np.array_equal(whole[:], due()) and np.array_equal(whole[2:4], due()[2:4])
            assert np.array_equal(whole[-1], due()[-1]) and NAME in session
            assert np.array_equal(session.tokens_of(NAME), np.arange(6))
            assert set(session[f"{NAME}.indices"][:].ravel()) == set(NUMBERS.ravel())
            with pytest.raises(NotFound, match="no tensor sae:other is stored"):
                session.latents("other")
        with pytest.raises(NotFound, match="no tensor sae:res-1 is stored"):
            last.latents("res-1")
        assert np.array_equal(second.latents(NAME).dense(), due(2))


def test_routes_answer_with_both_forms(service: Service, url: str, job_id: str) -> None:
    with Client(url) as client:
        session_id = sessions_of(client, job_id)[0].id
    path = f"/v1/activations/sessions/{session_id}/tensors"
    whole = service.client.get(f"{path}/{NAME}", params={"format": "json", "rows": "1:3"}).json()
    assert whole["shape"] == [2, LATENTS] and np.array_equal(whole["data"], due()[1:3])
    stored = service.client.get(f"{path}/{NAME}.indices", params={"format": "json"}).json()
    assert stored["dtype"] == "I32" and stored["data"] == NUMBERS.tolist()
    raw = service.client.get(f"{path}/{NAME}", params={"format": "npy"}).content
    assert len(raw) > 6 * LATENTS * 4
    assert service.client.get(f"{path}/sae:other").status_code == 404


def test_matrices_take_latents_as_features(service: Service, url: str, job_id: str) -> None:
    with Client(url) as client:
        job = client.jobs.get(job_id)
        matrix = job.matrix(NAME, positions="all")
        assert matrix.features.shape == (18, LATENTS)
        assert np.array_equal(matrix.features[6:12], due(2))
        assert [one.reason for one in matrix.skipped] == [
            "no tensor sae:res-1 is stored; stored: resid_post.1"
        ]
        strongest = client.matrix(NAME, positions="all", reduce="max", job_id=job_id)
        assert np.array_equal(strongest.features[2], due(3).max(axis=0))
        with pytest.raises(ApiError, match=r"sae:res-1.values has the largest latents.*name sae:res-1"):
            job.matrix(f"{NAME}.values")
        with pytest.raises(ApiError, match="more than max_bytes"):
            job.matrix(NAME, positions="all", max_bytes=17 * LATENTS * 4)


def test_analyses_read_latents_that_are_named(service: Service, job_id: str) -> None:
    query = SessionQuery(jobs=[job_id])
    with service.database.read() as session:
        named = queries.survey(session, query, [NAME], kind="probe")
        assert {name: info.shape for name, info in named.tensors.items()} == {NAME: (6, LATENTS)}
        by_default = queries.survey(session, query, [], kind="compare")
        assert list(by_default.tensors) == ["resid_post.1"]
        with pytest.raises(InvalidRequest, match="sae:res-1 cannot be read"):
            queries.survey(session, query, [NAME], kind="outliers")
        ids = queries.session_ids(session, query)[:3]
    read = list(blocks(service.services.store, ids, [NAME, "resid_post.1"], "all", block_bytes=500))
    assert len(read) > 3 and not any(block.skipped for block in read)
    rows = np.concatenate([block.rows[NAME] for block in read])
    assert np.array_equal(rows, np.concatenate([due(1), due(2), due(3)]))


def test_the_page_shows_a_latent_along_its_tokens(service: Service, url: str, job_id: str) -> None:
    with Client(url) as client:
        session_id = sessions_of(client, job_id)[0].id
    page = service.client.get(f"/sessions/{session_id}").text
    assert NAME in page and f"{NAME}.values&" not in page
    where = {"hook": NAME, "of": "channel", "channel": 7, "start": 0, "stop": 7}
    values = np.frombuffer(service.client.get(f"/sessions/{session_id}/values", params=where).content, "<f4")
    np.testing.assert_array_equal(values, [4, 0, 0, 5, 0, 0, np.nan])
    row = service.client.get(f"/sessions/{session_id}/row", params={"hook": NAME, "token": 0}).json()
    assert row["width"] == LATENTS and row["channels"][:2] == [[7, 4.0], [3, 2.0]]


def test_the_page_lists_the_strongest_sessions_of_a_latent(service: Service, url: str, job_id: str) -> None:
    with Client(url) as client:
        ids = [one.id for one in sessions_of(client, job_id)]
    path = f"/jobs/{job_id}/latents"
    assert f"{NAME} (50 latents)" in service.client.get(path).text
    shown = service.client.get(path, params={"sae": NAME, "latent": 7}).text
    order = sorted(ids[:3], key=lambda one: shown.index(f'href="/sessions/{one}?'))
    assert order == [ids[2], ids[1], ids[0]] and ids[3] not in shown
    assert ">15<" in shown.replace(".0<", "<"), "5 × 3, at token 3"
    assert f"/sessions/{ids[0]}?hook=sae%3Ares-1&amp;of=channel&amp;channel=7&amp;token=3" in shown
    assert "active nowhere" in service.client.get(path, params={"latent": 8}).text
    found = service.client.get(f"/sessions/{ids[0]}/latents", params={"hook": NAME}).json()
    keys = ("latent", "activation", "token", "tokens")
    assert [tuple(one[key] for key in keys) for one in found] == [
        (3, 6, 3, 2), (0, 5, 2, 3), (7, 5, 3, 2), (12, 2, 4, 1), (49, 1, 1, 1),
    ]  # fmt: skip
    for session_id, hook in ((ids[3], NAME), (ids[0], "resid_post.1"), (ids[0], "sae:other")):
        answer = service.client.get(f"/sessions/{session_id}/latents", params={"hook": hook})
        assert answer.status_code == 404
    plain = service.submit(capture={"saes": []})
    assert "stored no latents" in service.client.get(f"/jobs/{plain}/latents").text
