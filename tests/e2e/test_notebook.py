"""The notebook of the docs runs, cell by cell, against a service with a drained job."""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbclient
import nbformat
import pytest

from actograph.client import Client
from actograph.contract.resources import JobStatus
from actograph.demo import PROBLEMS

if TYPE_CHECKING:
    from tests.e2e.conftest import Up

pytestmark = pytest.mark.e2e

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "notebooks" / "morning.ipynb"
TAG = "first-night"


def drained(client: Client, folder: Path) -> str:
    """The job of the page that the notebook goes on from, with fewer problems."""
    rows = folder / "problems.jsonl"
    with PROBLEMS.open(encoding="utf-8") as file:
        rows.write_text("".join(itertools.islice(file, 40)), encoding="utf-8")
    job = client.evaluate(
        "gsm8k", dataset=rows, epochs=2, temperature=1.8, max_tokens=96, capture="resid_post@all",
        conditions=["plain", "EP02:suffix=This is very important to my career."], tags=[TAG],
    ).wait(timeout=240)  # fmt: skip
    assert job.status is JobStatus.COMPLETED
    return job.id


def printed(cell: Any) -> str:
    return "".join(
        one["text"] for one in cell["outputs"] if one["output_type"] == "stream" and one["name"] == "stdout"
    )


def kinds(cell: Any) -> set[str]:
    """Media types of a cell's outputs."""
    return {kind for one in cell["outputs"] for kind in one.get("data", ())}


def test_the_notebook_goes_from_a_drained_job_to_a_steered_model(
    up: Callable[..., "Up"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACTOGRAPH_ANALYSIS_WORKERS", "1")
    service = up()
    service.await_ready()
    with Client(service.url, "") as client:
        job_id = drained(client, tmp_path)
    monkeypatch.setenv("ACTOGRAPH_URL", service.url)
    # nothing of the user's own configuration
    for name in (
        "JUPYTER_CONFIG_DIR",
        "JUPYTER_DATA_DIR",
        "JUPYTER_RUNTIME_DIR",
        "IPYTHONDIR",
        "MPLCONFIGDIR",
    ):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.delenv("MPLBACKEND", raising=False)
    read: Any = nbformat.read  # has no types
    notebook = read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert printed(cells[0]).startswith(job_id)
    assert printed(cells[1]).count(" of 80 samples") == 2
    assert "text/html" in kinds(cells[2])
    assert sum("image/png" in kinds(cell) for cell in cells) == 2
    lines = printed(cells[-1]).splitlines()
    plain, steered = lines[1::3], lines[2::3]
    assert len(plain) == len(steered) == 8
    pairs = zip(plain, steered, strict=True)
    assert any(one.split(":", 1)[1] != other.split(":", 1)[1] for one, other in pairs)
    assert service.stop() == 0


def test_the_kernel_is_this_interpreter() -> None:
    from jupyter_client.manager import KernelManager

    assert KernelManager(kernel_name="python3").format_kernel_cmd()[0] == sys.executable
