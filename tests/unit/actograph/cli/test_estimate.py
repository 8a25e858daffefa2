"""`actograph estimate` takes what `jobs submit` takes, and leaves nothing behind."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from actograph.cli.main import app
from actograph.contract.operations import Estimate, Need
from tests.support.command_line import Run


@pytest.fixture(autouse=True)
def estimate(service: Any) -> None:
    service.estimate = Estimate(
        model="m",
        samples=2,
        hooks=["resid_post.1"],
        prompt_tokens_mean=10,
        prompt_tokens_longest=20,
        generated_tokens=512,
        bytes_per_token=2048,
        bytes_per_sample=1_067_000,
        slots=16,
        disk=Need(needed=2_134_000, available=10**9, fits=True),
        fits=True,
        assumptions=["a token is 4 characters long"],
    )


def test_it_has_every_flag_of_submit_but_watch() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    submit, estimate = commands["jobs"].commands["submit"], commands["estimate"]
    flags = {one.name for one in submit.params} - {"watch"}
    assert {one.name for one in estimate.params} == flags | {"prompt_tokens"}


def test_the_plan_is_shown_and_the_upload_removed(service: Any, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "1+1?", "answer": "#### 2"}\n')
    code, out, err = run(
        "estimate", "--model", "m", "--dataset", path, "--capture", "resid_post@1", "--prompt-tokens", 100
    )
    assert (code, err) == (0, "")
    assert service.uploads == {}
    assert service.jobs == {}
    sent = next(seen for seen in service.seen if seen.path == "/v1/estimate")
    assert sent.query == {"prompt_tokens": "100"}
    assert json.loads(sent.body)["capture"] == {"points": ["resid_post"], "layers": [1]}
    lines = out.splitlines()
    shown = {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}
    assert (shown["bytes per token"], shown["fits"]) == ("2.0 kB", "yes")
    assert shown["disk"] == "needed 2.1 MB, available 1.0 GB, fits yes"
    assert lines[-1] == "- a token is 4 characters long"
