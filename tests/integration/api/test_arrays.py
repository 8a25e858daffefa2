"""`job.write_arrays`: a job's rows as stacked arrays, read back with safetensors and numpy."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from actograph.client import Client
from actograph.contract.errors import InvalidRequest, NotFound
from storage.sessions.writer import TensorRows
from tests.integration.api.conftest import Service

LENGTHS = (6, 2, 0, 3)
SIZE = 5
#: text and token of every place, packed into sequences of 5; None is padding
PACKED: list[list[tuple[int, int] | None]] = [
    [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)],
    [(0, 5), (1, 0), (1, 1), None, None],
    [(3, 0), (3, 1), (3, 2), None, None],
]
ALONE = [[(text, token) if token < n else None for token in range(6)] for text, n in enumerate(LENGTHS)]


def rows_of(text: int, hook: str) -> torch.Tensor:
    seed = torch.Generator().manual_seed(text + len(hook))
    dtype = torch.bfloat16 if hook == "resid_post.1" else torch.float32
    return torch.randn(LENGTHS[text], 8, generator=seed).to(dtype)


@pytest.fixture
def job_id(service: Service) -> str:
    service.load_model()
    made = service.submit(inputs=[{"prompt": f"prompt {i}"} for i in range(len(LENGTHS))])
    for lease in service.claim(made, len(LENGTHS)):
        tensors = {}
        for hook, dtype in (("attn_in.0", "F32"), ("resid_post.1", "BF16")):
            rows = rows_of(lease.sample_index, hook)
            data = rows.view(torch.uint8).numpy().tobytes()
            tensors[hook] = TensorRows(hook, dtype, tuple(rows.shape), 0, data)
        service.finish(lease, tensors=tensors)
    return made


def expected(hook: str, places: list[list[tuple[int, int] | None]]) -> torch.Tensor:
    nothing = torch.zeros(8, dtype=rows_of(0, hook).dtype)
    return torch.stack([
        torch.stack([nothing if one is None else rows_of(one[0], hook)[one[1]] for one in sequence])
        for sequence in places
    ])  # fmt: skip


@pytest.mark.parametrize(("size", "places"), [(SIZE, PACKED), (None, ALONE)])
def test_texts_in_sequences_with_their_tokens(
    job_id: str, url: str, tmp_path: Path, size: int | None, places: Any
) -> None:
    with Client(url, "") as client:
        job = client.jobs.get(job_id)
        path = job.write_arrays(tmp_path / "arrays.safetensors", sequence=size)
        plain = job.write_arrays(tmp_path / "arrays.npz", sequence=size, hooks=["blocks.1.hook_resid_post"])
    assert {one.name for one in tmp_path.iterdir()} == {"arrays.safetensors", "arrays.npz", "home"}
    found = load_file(path)
    assert set(found) == {"token_ids", "segment_ids", "layer_0_ln_attn", "resid_post.1"}
    for name, hook in (("layer_0_ln_attn", "attn_in.0"), ("resid_post.1", "resid_post.1")):
        assert torch.equal(found[name], expected(hook, places))
    segments = [[0 if one is None else one[0] + 1 for one in sequence] for sequence in places]
    tokens = [[0 if one is None else one[1] + 100 for one in sequence] for sequence in places]
    assert (found["segment_ids"].tolist(), found["token_ids"].tolist()) == (segments, tokens)
    with safe_open(path, "pt") as opened:
        about = opened.metadata()
    assert json.loads(about["layers_extracted"]) == [0, 1]
    assert (about["model"], about["texts"]) == ("demo", "4")
    with np.load(plain) as arrays:
        assert set(arrays) == {"token_ids", "segment_ids", "resid_post.1", "metadata"}
        assert np.array_equal(arrays["resid_post.1"], expected("resid_post.1", places).float().numpy())
        assert json.loads(str(arrays["metadata"]))["layers_extracted"] == "[1]"


def test_arrays_that_cannot_be_made(job_id: str, url: str, tmp_path: Path) -> None:
    with Client(url, "") as client:
        job = client.jobs.get(job_id)
        with pytest.raises(InvalidRequest, match="must end in"):
            job.write_arrays(tmp_path / "arrays.pt")
        with pytest.raises(NotFound, match="no tensor mlp_in"):
            job.write_arrays(tmp_path / "arrays.npz", hooks=["mlp_in.0"])
    assert [one.name for one in tmp_path.iterdir()] == ["home"]
