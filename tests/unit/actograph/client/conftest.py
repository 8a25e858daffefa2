"""Sessions whose tensors a service serves and a store's folder holds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.client import Client
from actograph.client.matrix_rows import NamedSpan, Segmented
from actograph.contract import resources
from tests.support.tensor_files import encode_tensors

WIDTH = 4
PROMPT, GENERATED = 5, 3
BFLOAT16_OF_ONE = 0x3F80


def make_session(service: Any, store: Path, number: int, **changes: Any) -> resources.Session:
    """7 rows of `resid_post.1` (values 100 * number + 4 * row + column), and three other forms of tensor."""
    rows = np.arange(7 * WIDTH, dtype="<f4").reshape(7, WIDTH) + 100 * number
    tensors = {
        "resid_post.1": ("F32", rows),
        "attn_in.1": ("BF16", np.full((7, WIDTH), BFLOAT16_OF_ONE, "<u2")),
        "mlp_in.1": ("F16", rows[[0, 4, 6]].astype("<f2")),
        "mlp_out.1": ("F32", rows.mean(axis=0, keepdims=True)),
        "expert_indices.1": ("I64", np.arange(14, dtype="<i8").reshape(7, 2)),
        "token_ids": ("I64", np.arange(8, dtype="<i8")),
        "row_positions": ("I64", np.array([0, 4, 6], dtype="<i8")),
    }
    more: dict[str, dict[str, Any]] = {
        "mlp_in.1": {"position_offset": 0},
        "mlp_out.1": {"summary": "mean", "over": 7},
    }
    content = encode_tensors(
        {name: (dtype, array.shape, array.tobytes()) for name, (dtype, array) in tensors.items()}
    )
    made = service.add_session(number, {"activations.safetensors": content, "manifest.json": b"{}"})
    hooks = {
        name: resources.TensorInfo(
            shape=list(array.shape), dtype=dtype, nbytes=array.nbytes, **more.get(name, {})
        )
        for name, (dtype, array) in tensors.items()
        if array.ndim == 2
    }
    session: resources.Session = made.model_copy(update={"hooks": hooks} | changes)
    service.sessions[session.id] = session
    service.manifests[session.id] = Segmented(
        segments=[
            NamedSpan(name="prompt", start=0, stop=5),
            NamedSpan(name="think", start=5, stop=6),
            NamedSpan(name="answer", start=6, stop=8),
        ]
    )
    folder = store / "sessions" / session.id
    folder.mkdir(parents=True)
    (folder / "activations.safetensors").write_bytes(content)
    for name, stored in tensors.items():
        service.tensors[session.id, name] = stored
    return session


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "artifacts"
    (folder / "sessions").mkdir(parents=True)
    return folder


@pytest.fixture
def session(service: Any, store: Path) -> resources.Session:
    return make_session(service, store, 1)


@pytest.fixture
def sessions(service: Any, store: Path) -> list[resources.Session]:
    """Three right and two wrong answers, the conditions taking turns, the first session the oldest."""
    service.add_job(1)
    return [
        make_session(service, store, number, condition="ab"[number % 2], correct=number < 3)
        for number in range(5)
    ]


@pytest.fixture
def plain(service: Any) -> Iterator[Client]:
    with Client(service.url, "") as client:
        yield client


@pytest.fixture
def local(service: Any, store: Path) -> Iterator[Client]:
    """Reads rows from the folder, past the service."""
    with Client(service.url, "", store=store) as client:
        yield client
