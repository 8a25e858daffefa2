"""Rows of every dtype, read in every way: the numbers are those that were stored."""

import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from actograph.analysis.files import read_arrays, stored_arrays
from actograph.client import Client, to_torch_dataset
from actograph.client.stored_session import open_folder
from actograph.contract.resources import Score
from actograph.dtypes import DTYPES, row_bytes
from actograph.tensor_files import value_array
from storage.sessions import selected_rows
from storage.sessions.reader import SessionReader
from storage.sessions.writer import TensorRows
from tests.integration.api.conftest import Service
from worker.engine.capture.host_rows import rows_of
from worker.engine.capture.selection import encoded
from worker.sample.recorder import _tensor_rows

pytestmark = pytest.mark.integration

WIDTH, ROWS = 13, 6
#: hook -> dtype in which its rows are stored
STORED = {
    "attn_in.0": torch.float32,
    "attn_in.1": torch.float16,
    "attn_in.2": torch.bfloat16,
    "resid_post.0": torch.float8_e4m3fn,
    "resid_post.1": torch.int64,
}
Numbers = NDArray[Any]


def _rows(hook: str) -> torch.Tensor:
    """Rows as the model computes them; a channel is much larger than the others."""
    generator = torch.Generator().manual_seed(len(hook))
    numbers = torch.randn(ROWS, WIDTH, generator=generator) * 5
    numbers[:, 2] *= 100
    numbers[4] = 0
    return numbers


def _tensor(hook: str, dtype: torch.dtype) -> TensorRows:
    """Rows on their way from the engine to the files."""
    rows = _rows(hook)
    rows = encoded(rows) if dtype == torch.float8_e4m3fn else rows.to(dtype)
    return _tensor_rows(hook, rows_of((rows[:2].clone(), rows[2:].clone())))


def _expected(hook: str) -> Numbers:
    rows, dtype = _rows(hook), STORED[hook]
    if dtype != torch.float8_e4m3fn:
        stored = rows.to(dtype)
        return (stored.float() if dtype == torch.bfloat16 else stored).numpy()
    scale = rows.abs().amax(1, keepdim=True) * ((1 - 2**-22) / 448)
    scale = scale.clamp_min(torch.finfo(torch.float32).tiny)
    return ((rows / scale).to(dtype).float() * scale).numpy()


@pytest.fixture
def session_id(service: Service) -> str:
    service.load_model()
    job = service.submit(inputs=[{"prompt": "a"}], capture={"hooks": list(STORED)})
    (lease,) = service.claim(job)
    tensors = {hook: _tensor(hook, dtype) for hook, dtype in STORED.items()}
    found = service.finish(lease, tensors=tensors, scores={"s": Score(value=1.0)}, correct=True)
    assert found is not None
    return found


def _readers(
    service: Service, client: Client, session_id: str, folder: Path
) -> Mapping[str, Callable[[str], Numbers]]:
    """Ways to read all rows of a hook as numbers."""
    path = f"/v1/activations/sessions/{session_id}/tensors"
    session = client.sessions.get(session_id)
    job = client.jobs.get(session.job_id)
    downloaded = session.download(folder)
    local, reader = open_folder(downloaded), SessionReader(service.services.store, session_id)
    of_files = stored_arrays(downloaded / "activations.safetensors")
    arrays = load_file(job.write_arrays(folder / "a.safetensors", hooks=list(STORED)))
    with np.load(job.write_arrays(folder / "a.npz", hooks=list(STORED))) as opened:
        npz = dict(opened)
    names = {"attn_in": "layer_{}_ln_attn", "resid_post": "resid_post.{}"}

    def array_name(hook: str) -> str:
        point, layer = hook.split(".")
        return names[point].format(layer)

    def slices(hook: str, form: str) -> bytes:
        answer = service.client.get(f"{path}/{hook}", params={"format": form})
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-tensor-dtype"] == DTYPES[session.hooks[hook].dtype].read
        return answer.content

    def safetensors(hook: str) -> Numbers:
        file = folder / "slice.safetensors"
        file.write_bytes(slices(hook, "safetensors"))
        return _numbers(load_file(file)[hook])

    def of_layout(hook: str) -> Numbers:
        read = reader.layout(hook)
        return np.concatenate([_values(read.rows(0, 3)), _values(read.rows(3, ROWS))])

    return {
        "slice as safetensors": safetensors,
        "slice as npy": lambda hook: np.load(io.BytesIO(slices(hook, "npy"))),
        "slice as json": lambda hook: np.array(json.loads(slices(hook, "json"))["data"]),
        "client": lambda hook: session[hook][:],
        "client, one row each": lambda hook: np.stack([session[hook][row] for row in range(ROWS)]),
        "client, some columns": lambda hook: np.concatenate([session[hook][:, :5], session[hook][:, 5:]], 1),
        "client as torch": lambda hook: _numbers(session[hook].torch()),
        "torch dataset": lambda hook: _numbers(
            torch.stack(sorted(to_torch_dataset([session], hook), key=lambda row: _place(hook, row)))
        ),
        "downloaded": lambda hook: np.asarray(local[hook]),
        "downloaded, in blocks": lambda hook: np.stack(list(local[hook])),
        "downloaded as torch": lambda hook: _numbers(local[hook].torch()),
        "files of arrays": lambda hook: of_files[hook].read(),
        "files of arrays, rows": lambda hook: np.concatenate(
            [of_files[hook].rows(0, 2), of_files[hook].rows(2, ROWS)]
        ),
        "all arrays of a file": lambda hook: read_arrays(downloaded / "activations.safetensors")[hook],
        "written as safetensors": lambda hook: _numbers(arrays[array_name(hook)][0, :ROWS]),
        "written as npz": lambda hook: npz[array_name(hook)][0, :ROWS],
        "server": lambda hook: _values(reader.rows(hook, 0, ROWS)),
        "server, by places": of_layout,
        "patching": lambda hook: np.stack(
            [selected_rows.of_token(reader, hook, token) for token in range(ROWS)]  # type: ignore[misc]
        ),
        "matrix": lambda hook: job.matrix(hook, positions="all").features,
    }


def _place(hook: str, row: torch.Tensor) -> int:
    """The nearest row: a data set gives them in random order."""
    return int(np.abs(_expected(hook) - _numbers(row)).sum(1).argmin())


def _values(piece: Any) -> Numbers:
    return value_array(piece.dtype, piece.shape, piece.data)


def _numbers(tensor: torch.Tensor) -> Numbers:
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def test_every_reader_has_the_numbers_of_every_dtype(
    service: Service, url: str, session_id: str, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    (tmp_path / "got").mkdir()
    with Client(url, "") as client:
        for way, read in _readers(service, client, session_id, tmp_path / "got").items():
            for hook, dtype in STORED.items():
                with subtests.test(way, dtype=str(dtype)):
                    found, expected = read(hook), _expected(hook)
                    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=0)
                    floats = dtype == torch.float8_e4m3fn
                    assert not floats or way == "slice as json" or found.dtype == np.float32


def _entries(content: Any) -> list[dict[str, Any]]:
    """All objects within an object."""
    if isinstance(content, list):
        return [one for part in content for one in _entries(part)]
    if not isinstance(content, dict):
        return []
    return [content, *_entries(list(content.values()))]


def test_the_page_and_exports_read_rows_with_scales(
    service: Service, session_id: str, subtests: pytest.Subtests
) -> None:
    hook = "resid_post.0"
    rows = _expected(hook).astype(np.float64)
    with subtests.test("strip"):
        params = {"hook": hook, "of": "norm", "start": 0, "stop": ROWS}
        answer = service.client.get(f"/sessions/{session_id}/values", params=params)
        norms = np.frombuffer(answer.content, "<f4")
        np.testing.assert_allclose(norms, np.linalg.norm(rows, axis=1), rtol=1e-5)
    with subtests.test("row"):
        row = service.client.get(f"/sessions/{session_id}/row", params={"hook": hook, "token": 1}).json()
        channel, value = row["channels"][0]
        assert (channel, value) == (2, pytest.approx(rows[1, 2]))
    with subtests.test("page"):
        page = service.client.get(f"/sessions/{session_id}")
        assert page.status_code == 200 and hook in page.text
    with subtests.test("export"):
        job = service.client.get(f"/v1/activations/sessions/{session_id}").json()["job_id"]
        export = service.client.get(f"/v1/jobs/{job}/export", params={"activations": "sampled"})
        assert export.status_code == 200, export.text
        with tarfile.open(fileobj=io.BytesIO(export.content)) as archive:
            texts = [archive.extractfile(one).read().decode() for one in archive if one.isfile()]  # type: ignore[union-attr]
        (sampled,) = [json.loads(text) for text in texts if '"sample_info"' in text]
        (entry,) = [one for one in _entries(sampled) if one.get("hook") == hook]
        np.testing.assert_allclose(np.array(entry["data"]), rows, rtol=1e-6)


def test_files_hold_bits_and_scales_and_their_sizes_are_counted(
    service: Service, session_id: str, tmp_path: Path
) -> None:
    reader = SessionReader(service.services.store, session_id)
    reader.verify()
    with Path(tmp_path / "file.safetensors").open("wb") as file:
        file.write(b"".join(service.services.store.stream(f"sessions/{session_id}/activations.safetensors")))
    found = load_file(tmp_path / "file.safetensors")
    assert found["resid_post.0"].dtype == torch.float8_e4m3fn
    scales = found["resid_post.0.scale"]
    assert (scales.dtype, scales.shape) == (torch.float32, (ROWS, 1))
    by_hand = found["resid_post.0"].float() * scales
    assert np.array_equal(by_hand.numpy(), _expected("resid_post.0"))
    for info in reader.manifest.tensors.values():
        assert info.nbytes == ROWS * row_bytes(DTYPES[info.dtype], WIDTH)
    hooks = service.client.get(f"/v1/activations/sessions/{session_id}").json()["hooks"]
    assert set(hooks) == set(STORED), "scales are no hook of their own"
    assert hooks["resid_post.0"]["nbytes"] == ROWS * (WIDTH + 4)
