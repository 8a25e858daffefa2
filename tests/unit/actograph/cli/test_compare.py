"""`actograph jobs compare`: what it asks for and how it shows the answer."""

from typing import Any

import pytest

from actograph.contract.resources import (
    ConditionComparison,
    ConditionText,
    JobComparison,
    JobStatus,
    MetricDifference,
    PairedDifference,
    ProblemTexts,
    TextComparison,
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
    problems = [
        ProblemTexts(
            sample_index=0, epoch=0, prompt="1+2=", baseline="3",
            conditions={
                "kind": ConditionText(text="3", token=None, shifts={"embed": 0.5, "resid_post.1": 0.25}),
                "loud": ConditionText(text="33!", character=1, token=1, shifts={"embed": 1.0}),
            },
        ),
        ProblemTexts(
            sample_index=1, epoch=1, prompt="2+2=", baseline="4",
            conditions={
                "kind": ConditionText(text=None),
                "loud": ConditionText(text="5", character=0, shifts={"embed": 2.0}),
            },
        ),
    ]  # fmt: skip
    service.text_comparison = TextComparison(
        job_id=job.id, status=JobStatus.COMPLETED, baseline="plain", data=problems, has_more=True
    )

    return lambda *arguments: run("jobs", "compare", job.id, *arguments)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_scores_and_lengths_are_a_table(service: Any, compare: Run) -> None:
    code, out, err = compare("--baseline", "plain")
    assert (code, err) == (0, "")
    assert service.seen[-1].query == {"baseline": "plain"}
    lines = out.splitlines()
    assert lines[0] == "baseline: plain"
    assert cells(lines[3]) == [
        "kind", "exact_match,strict-match", "100", "0.5000", "0.7500", "+0.2500",
        "+0.1000 to +0.4000", "1.6e-06",
    ]  # fmt: skip
    assert cells(lines[4]) == ["kind", "prompt_tokens", "0", "N/A", "N/A", "N/A", "N/A"]
    assert cells(lines[5])[2:] == ["100", "50.0", "62.0", "+12.0", "+9.5 to +14.0"]


def test_texts_are_side_by_side_and_shifts_are_means(service: Any, compare: Run) -> None:
    code, out, err = compare("--texts", "--hooks", "resid_post,embed", "--limit", 2, "--offset", 3)
    assert (code, err) == (0, "only 2 problems; show more with --limit and --offset\n")
    assert service.seen[-1].query == {"hooks": "embed", "limit": "2", "offset": "3"}
    first, second, shifts = ([cells(line) for line in part.splitlines()] for part in out.split("\n\n"))
    assert first == [
        ["problem 0: 1+2="], ["Condition", "Token", "Character", "Text"], ["plain", "3"],
        ["kind", "(the same)"], ["loud", "1", "1", "33!"],
    ]  # fmt: skip
    assert second[0] == ["problem 1, epoch 1: 2+2="]
    assert second[3:] == [["kind", "(not completed)"], ["loud", "0", "5"]]
    assert shifts[1:] == [
        ["Hook", "kind", "loud"], ["embed", "0.5", "1.5"], ["resid_post.1", "0.25"]
    ]  # fmt: skip


def test_flags_of_the_other_form_are_refused(compare: Run) -> None:
    for flags, says in [(("--hooks", "embed"), "need --texts"), (("--texts", "--level", "0.9"), "--level")]:
        code, _, err = compare(*flags)
        assert code == 1
        assert says in err
