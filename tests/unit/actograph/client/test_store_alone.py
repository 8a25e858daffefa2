"""A store without a service: its sessions, from their manifests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.client import Client
from actograph.client.errors import ServiceUnreachable
from actograph.client.tensors import open_folder
from actograph.contract import resources
from actograph.contract.errors import InvalidRequest, NotFound, StoreDamaged
from actograph.stack.ports import free_port
from storage.sessions.manifest import Segment, SessionManifest, StoredTensor

JOB = f"job_{1:032x}"
HOOK = "resid_post.1"


def write_manifest(store: Path, session: resources.Session) -> None:
    tensors = {name: StoredTensor.model_validate(info.model_dump()) for name, info in session.hooks.items()}
    manifest = SessionManifest(
        session_id=session.id, job_id=session.job_id, sample_id=session.sample_id,
        sample_index=session.sample_index, condition=session.condition, model=session.model, capture={},
        capture_sha256="", dtype="model", prompt_tokens=5, generated_tokens=3, seed=0,
        created_at=session.created_at, tensors=tensors, segments=[Segment(name="think", start=5, stop=6)],
        files=[file for file in session.files if file.name != "manifest.json"],
    )  # fmt: skip
    (store / "sessions" / session.id / "manifest.json").write_text(manifest.encode(), encoding="utf-8")


@pytest.fixture
def alone(
    tmp_path: Path, store: Path, sessions: list[resources.Session], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Client]:
    """A client of the store, where no service listens."""
    monkeypatch.delenv("ACTOGRAPH_URL", raising=False)
    monkeypatch.setenv("ACTOGRAPH_PORT", str(free_port("127.0.0.1")))
    monkeypatch.chdir(tmp_path)
    for session in sessions:
        write_manifest(store, session)
    with Client(store=store) as client:
        yield client


def test_sessions_are_listed_from_their_manifests(
    alone: Client, sessions: list[resources.Session], service: Any
) -> None:
    ids = [session.id for session in sessions]
    assert [found.id for found in alone.sessions.list()] == ids[::-1]
    assert [found.id for found in alone.sessions.list(order="asc", condition="b", job=JOB)] == ids[1::2]
    assert [found.id for found in alone.sessions.list(sample_index=2, id_prefix=ids[2])] == [ids[2]]
    assert alone.sessions.stats(condition="a").sessions == 3
    found = alone.sessions.get(ids[1])
    assert (found.rows, found.correct, found.hooks) == (7, None, sessions[1].hooks)
    assert np.array_equal(found["layers_output[1]"][2:4, 1], [109, 113])
    assert found.tokens_of("mlp_in.1").tolist() == [0, 4, 6]
    assert [span.name for span in found.segments()] == ["think"]
    assert service.seen == []


def test_a_matrix_needs_no_service(alone: Client) -> None:
    matrix = alone.jobs.matrix(JOB, HOOK, rows="think")
    assert matrix.features[:, 0].tolist() == [20, 120, 220, 320, 420]
    assert np.isnan(matrix.labels).all(), "verdicts are in the index"


def test_faults_of_a_store_alone(alone: Client, store: Path, sessions: list[resources.Session]) -> None:
    with pytest.raises(InvalidRequest, match="correct needs the service"):
        next(alone.sessions.list(correct=True))
    with pytest.raises(NotFound, match="no session ses_0"):
        alone.sessions.get("ses_0")
    (store / "sessions" / sessions[0].id / "manifest.json").write_text("{}")
    with pytest.raises(StoreDamaged, match=r"manifest\.json"):
        list(alone.sessions.list())
    assert open_folder(store / "sessions" / sessions[0].id)[HOOK].shape == (7, 4), "its files are whole"


def test_a_service_that_is_named_must_answer(alone: Client, store: Path) -> None:
    """The store does not stand in for a service that is down: it knows no verdicts."""
    with (
        Client(f"http://127.0.0.1:{free_port('127.0.0.1')}", "", store=store, retries=0) as client,
        pytest.raises(ServiceUnreachable),
    ):
        next(client.sessions.list())


def test_the_folder_of_a_session_knows_its_tokens(alone: Client, store: Path, sessions: Any) -> None:
    session = open_folder(store / "sessions" / sessions[0].id)
    assert session.hooks == sessions[0].hooks
    assert "layers_output[1]" in session
    assert "resid_post.9" not in session
    with pytest.raises(NotFound, match="no tensor"):
        _ = session["resid_post.9"]
