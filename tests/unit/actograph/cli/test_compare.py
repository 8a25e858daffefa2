"""`actograph jobs compare`: what it asks for and how it shows the answer."""

import json
from typing import Any

import pytest

from actograph.contract.resources import (
    ActivationComparison,
    ConditionComparison,
    HookDifference,
    JobComparison,
    JobStatus,
    MetricDifference,
    PairedDifference,
)
from tests.support.command_line import Run

NOTHING = PairedDifference(pairs=0)


@pytest.fixture
def compare(service: Any, run: Run) -> Run:
    job = service.add_job(1)
    metric = MetricDifference(
        pairs=100, baseline=0.5, condition=0.75, difference=0.25, low=0.1, high=0.4,
        only_baseline=2, only_condition=27, mcnemar_p=1.6e-06,
    )  # fmt: skip
    tokens = PairedDifference(pairs=100, baseline=50, condition=62, difference=12, low=9.5, high=14)
    kind = ConditionComparison(
        unpaired=0,
        metrics={"exact_match,strict-match": metric},
        prompt_tokens=NOTHING,
        generated_tokens=tokens,
    )
    service.comparison = JobComparison(
        job_id=job.id, status=JobStatus.COMPLETED, baseline="plain", level=0.95, resamples=2000,
        conditions={"kind": kind},
    )  # fmt: skip
    hook = HookDifference(
        pairs=9, width=8, baseline_norm=1, condition_norm=2, difference_norm=1.5, cosine_similarity=0.5,
        mean_pair_norm=1.6, consistency=None, vector_id="vec_" + "1" * 32,
    )  # fmt: skip
    service.activation_comparison = ActivationComparison(
        job_id=job.id, baseline="plain", condition="kind", positions="answer", pairs=10, skipped=1,
        hooks={"resid_post.1": hook},
    )  # fmt: skip

    return lambda *arguments: run("jobs", "compare", job.id, *arguments)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_scores_and_lengths_are_a_table(service: Any, compare: Run) -> None:
    code, out, err = compare("--baseline", "plain")
    assert (code, err) == (0, "")
    assert service.seen[-1].query == {"baseline": "plain", "level": "0.95"}
    lines = out.splitlines()
    assert lines[0] == "baseline: plain"
    assert cells(lines[3]) == [
        "kind", "exact_match,strict-match", "100", "0.5000", "0.7500", "+0.2500",
        "+0.1000 to +0.4000", "1.6e-06",
    ]  # fmt: skip
    assert cells(lines[4]) == ["kind", "prompt_tokens", "0", "N/A", "N/A", "N/A", "N/A"]
    assert cells(lines[5])[2:] == ["100", "50.0", "62.0", "+12.0", "+9.5 to +14.0"]


def test_activations_are_asked_for_as_typed(service: Any, compare: Run) -> None:
    code, out, err = compare(
        *("--activations", "kind", "--hooks", "resid_post.1,mlp_in.2", "--positions", "answer"),
        *("--limit", 10, "--save-as", "mood"),
    )
    assert (code, err) == (0, "saved mood@resid_post.1 as vec_111111111111\n")
    sent = json.loads(service.seen[-1].body)
    assert sent == {
        "baseline": None, "condition": "kind", "hooks": ["resid_post.1", "mlp_in.2"], "positions": "answer",
        "limit": 10, "save_as": "mood",
    }  # fmt: skip
    fields, _, table = out.partition("\n\n")
    assert [line.split()[-1] for line in fields.splitlines()][1:] == ["plain", "kind", "answer", "10", "1"]
    head, row = map(cells, table.splitlines())
    assert dict(zip(head, row, strict=True)) == {
        "HOOKS": "resid_post.1", "PAIRS": "9", "WIDTH": "8", "BASELINE NORM": "1", "CONDITION NORM": "2",
        "DIFFERENCE NORM": "1.5", "COSINE SIMILARITY": "0.5", "MEAN PAIR NORM": "1.6",
        "VECTOR ID": "vec_" + "1" * 32,
    }  # fmt: skip
