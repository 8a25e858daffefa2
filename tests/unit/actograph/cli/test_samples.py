"""`actograph jobs samples`: verdicts, errors, and texts that end where the terminal does."""

from typing import Any

import pytest

from actograph.contract import base, resources
from tests.support.command_line import Run


@pytest.fixture
def job(service: Any) -> resources.Job:
    """Right, wrong, failed."""
    job: resources.Job = service.add_job(1)

    def sample(index: int, **fields: Any) -> resources.Sample:
        return resources.Sample(
            id=f"smp_{index:032x}", job_id=job.id, sample_index=index, condition="plain", input={}, **fields
        )

    scores = {"exact_match,strict-match": resources.Score(value=1.0, answer="3")}
    done = resources.SampleStatus.COMPLETED
    service.samples[job.id] = [
        sample(0, status=done, completion="so it is\n#### 3", scores=scores, generated_tokens=5),
        sample(
            1,
            status=done,
            completion="答" * 200,
            scores={"exact_match,strict-match": resources.Score(value=0.0)},
            session_id="ses_" + "a" * 32,
        ),
        sample(
            2,
            status=resources.SampleStatus.FAILED,
            error=base.ErrorRecord(type="context_length_exceeded", message="too long"),
        ),
    ]
    return job


def test_a_line_for_each_sample(job: resources.Job, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    code, out, _ = run("jobs", "samples", job.id)
    assert code == 0
    head, right, wrong, failed = out.splitlines()
    assert head.split()[:6] == ["SAMPLE", "INDEX", "CONDITION", "EPOCH", "STATUS", "CORRECT"]
    assert right.split()[:6] == ["0", "plain", "0", "completed", "yes", "5"] and "so it is #### 3" in right
    assert "ses_aaaaaaaaaaaa" in wrong and wrong.endswith("答…")
    assert "context_length_exceeded: too long" in failed
