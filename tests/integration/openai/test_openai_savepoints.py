"""Savepoints and aliases: the capture of `store_activations`, and names for reading."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from actograph.client import Client
from actograph.contract.models.model_loads import with_savepoints
from storage.queue import workers
from tests.integration.openai.conftest import WORKER

pytestmark = pytest.mark.integration

SAVEPOINTS = {"early": "attn_in.1", "late": "resid_post.0"}


Load = Callable[[dict[str, str]], None]


@pytest.fixture
def load(service: Any, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Gives the loaded model other savepoints."""

    def load_with(savepoints: dict[str, str]) -> None:
        structure = with_savepoints(service.engine.structure, savepoints)
        monkeypatch.setattr(service.engine, "structure", structure)
        with service.database.write() as session:
            workers.set_ready(session, WORKER, structure)

    return load_with


@pytest.fixture
def session_id(client: Any, load: Load) -> str:
    """The session of a chat that stores the model's savepoints."""
    load(SAVEPOINTS)
    answer = client.chat.completions.create(
        model="tiny-qwen3",
        messages=[{"role": "user", "content": "2 + 2?"}],
        max_tokens=3,
        extra_body={"store_activations": True},
    )
    assert set(answer.activations_meta) == set(SAVEPOINTS.values())
    return str(answer.session_id)


def test_store_activations_keeps_the_savepoints_and_reads_them_by_each_name(
    service: Any, session_id: str
) -> None:
    names = [
        "attn_in.1",
        "early",
        "model.layers.1.input_layernorm.output",
        "model.layers[1].input_layernorm.output",
        "model.layers[1].input_layernorm.output[0]",
        "layer_1_input_layernorm_output",
    ]
    with Client(service.url) as client:
        found = client.sessions.get(session_id)
        expected = found["attn_in.1"][:]
        for name in names:
            np.testing.assert_array_equal(found[name][:], expected)
            path = f"/v1/activations/sessions/{session_id}/tensors/{name}"
            read = client._transport.request("GET", path, params={"format": "json"}).json()
            assert (read["hook"], read["shape"]) == ("attn_in.1", list(expected.shape))
            query = {"hook": name, "of": "norm"}
            path = f"/v1/activations/sessions/{session_id}/values"
            norms = np.frombuffer(client._transport.request("GET", path, params=query).content, "<f4")
            np.testing.assert_allclose(norms[:-1], np.linalg.norm(expected, axis=1), rtol=1e-5)
        assert "late" in found and "later" not in found
        matrix = client.jobs.matrix(found.job_id, "late", rows="last_prompt")
        np.testing.assert_array_equal(matrix.features[0], found["resid_post.0"][found.prompt_tokens - 1])


def test_names_are_those_of_the_recording(service: Any, session_id: str, load: Load) -> None:
    load({"late": "attn_in.1"})
    with Client(service.url) as client:
        assert client.sessions.get(session_id)["late"].hook == "resid_post.0"
        path = f"/v1/activations/sessions/{session_id}/tensors/late"
        read = client._transport.request("GET", path, params={"format": "json"}).json()
        assert read["hook"] == "resid_post.0"
