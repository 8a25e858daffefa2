"""The notebook of the docs: its cells run in order, on a drained job of a real service."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actograph.client import Client
from actograph.contract.resources import JobStatus
from actograph.demo import PROBLEMS

pytestmark = pytest.mark.e2e

NOTEBOOK = Path(__file__).resolve().parents[3] / "docs" / "notebooks" / "morning.ipynb"


def test_the_notebook_goes_from_a_drained_job_to_a_steered_generation(
    up: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    service = up()
    service.await_ready()
    with Client(service.url, "") as client:
        job = client.submit(
            {
                "kind": "evaluation",
                "model": "demo",
                "task": "gsm8k",
                "dataset": {"file_id": client.files.upload(PROBLEMS).id},
                "limit": 40,
                "sampling": {"max_tokens": 96, "temperature": 1.8},
                "epochs": 2,
                "conditions": [{"name": "plain"}, {"name": "EP02", "suffix": "This matters."}],
                "capture": {"points": ["resid_post"], "layers": "all"},
                "tags": ["first-night"],
            }
        ).wait()
        assert job.status is JobStatus.COMPLETED, job.error
    monkeypatch.setenv("ACTOGRAPH_URL", service.url)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") for cell in cells)
    names: dict[str, Any] = {}
    printed = []
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
            printed.append(capsys.readouterr().out)
    names["client"].close()
    scores, probes, _, _, samples = printed
    assert scores.count(" of 80 samples") == 2
    assert list(names["numbers"].hook) == [f"resid_post.{layer}" for layer in range(len(names["numbers"]))]
    assert "auroc_bag_of_words" in probes
    assert names["axes"].get_lines()
    texts = dict(line.split(": ", 1) for line in samples.splitlines())
    assert len(texts) == 16
    assert any(texts[f"{number} plain"] != texts[f"{number} steered"] for number in range(8))
    names["plt"].close("all")
