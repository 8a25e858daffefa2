"""Rows of a job as one file with an array per layer, over a socket."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from actograph.client import Client
from actograph.contract.errors import InvalidRequest
from storage.sessions.writer import TensorRows
from tests.integration.api.conftest import MODEL, Service
from tests.support.command_line import Run

pytestmark = pytest.mark.integration

LAYERS, WIDTH = 2, 8
LENGTHS = (3, 6, 4)
HOOKS = [f"{point}.{layer}" for layer in range(LAYERS) for point in ("attn_in", "mlp_in")]


@pytest.fixture
def rows() -> list[dict[str, np.ndarray]]:
    draw = np.random.default_rng(0)
    return [{name: draw.normal(size=(n, WIDTH)).astype(np.float32) for name in HOOKS} for n in LENGTHS]


@pytest.fixture
def job_id(service: Service, rows: list[dict[str, np.ndarray]]) -> str:
    service.load_model()
    made = service.submit(inputs=[{"prompt": "Hello"}] * len(LENGTHS), capture={"hooks": HOOKS})
    for lease, arrays in zip(service.claim(made, len(LENGTHS)), rows, strict=True):
        tensors = {
            name: TensorRows(name=name, dtype="F32", first_row=0, shape=array.shape, data=array.tobytes())
            for name, array in arrays.items()
        }
        service.finish(lease, tensors=tensors)
    return made


@pytest.fixture
def stack(url: str, run: Run) -> Run:
    """The command `actograph jobs stack`, at the service."""
    return lambda *arguments: run("jobs", "stack", *arguments)


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_every_layer_is_an_array_of_all_sessions(
    job_id: str, rows: list[dict[str, np.ndarray]], stack: Run, tmp_path: Path, suffix: str
) -> None:
    file = tmp_path / f"rows.{suffix}"
    code, out, said = stack(job_id, file)
    assert code == 0, said
    told = json.loads(out)
    names = [f"layer_{layer}_{point}" for layer in range(LAYERS) for point in ("ln_attn", "ln_mlp")]
    assert (told["batch"], told["sequence"], told["layers_extracted"]) == (3, 6, [0, 1])
    assert told["arrays"] == names
    arrays = load_file(file) if suffix == "safetensors" else dict(np.load(file, allow_pickle=False))
    assert arrays["attention_mask"].sum(axis=1).tolist() == list(LENGTHS)
    assert arrays["sample_index"].tolist() == [0, 1, 2]
    for name, hook in zip(names, HOOKS, strict=True):
        assert arrays[name].shape == (3, 6, WIDTH)
        for number, session in enumerate(rows):
            np.testing.assert_array_equal(arrays[name][number, : LENGTHS[number]], session[hook])
            assert not arrays[name][number, LENGTHS[number] :].any()
    if suffix == "safetensors":
        with safe_open(file, framework="numpy") as opened:
            metadata = opened.metadata()
        assert metadata == {"model": MODEL, "job_id": job_id, "layers_extracted": "[0, 1]"}
    else:
        assert arrays["layers_extracted"].tolist() == [0, 1]
    assert [one.name for one in tmp_path.glob("rows*")] == [file.name]


def test_a_stack_that_cannot_be_made_leaves_no_file(job_id: str, url: str, tmp_path: Path) -> None:
    with Client(url, "") as client:
        for file, points, message in (
            ("rows.bin", ["mlp_in"], "must end with"),
            ("none/rows.npz", ["mlp_in"], "no folder"),
            ("rows.npz", ["mlp_in", "resid_post"], "no layer of resid_post"),
        ):
            with pytest.raises(InvalidRequest, match=message):
                client.jobs.stack(job_id, tmp_path / file, points=points)
        with pytest.raises(InvalidRequest, match="max_bytes"):
            client.jobs.stack(job_id, tmp_path / "rows.npz", max_bytes=8)
    assert not list(tmp_path.glob("rows*"))
