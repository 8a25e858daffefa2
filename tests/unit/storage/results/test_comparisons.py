"""Paired comparison of a job's conditions, on both databases, against scipy and statsmodels."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar

from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import JobComparison, Score
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue.commit import SampleResult
from storage.results import comparisons
from storage.results.comparisons import Bootstrap
from tests.support import leasing

Submit = Callable[..., str]
KEY = "exact_match,strict-match"
CONDITIONS = [{"name": "baseline"}, {"name": "kind"}, {"name": "stern"}]
#: how often each condition is right, and how much longer its answers are
ACCURACY = {"baseline": 0.5, "kind": 0.75, "stern": 0.5}
LONGER = {"baseline": 0, "kind": 12, "stern": -3}

Verdicts = dict[tuple[str, int, int], tuple[float, int]]


def run(database: Database, job_id: str, *, leave: int = 0, seed: int = 1) -> Verdicts:
    """Complete a job's samples but the last `leave`; (condition, index, epoch) -> (value, tokens)."""
    generator = np.random.default_rng(seed)
    verdicts: Verdicts = {}
    with database.write() as session:
        leases = leasing.claim(session, job_id, worker_id="wrk_a", count=10_000)
        for lease in leases[: len(leases) - leave]:
            value = float(generator.random() < ACCURACY[lease.condition])
            tokens = int(generator.integers(20, 60)) + LONGER[lease.condition]
            verdicts[lease.condition, lease.sample_index, lease.epoch] = value, tokens
            scores = {KEY: Score(value=value), "length,reward": Score(value=tokens / 100)}
            leasing.complete(
                session,
                lease,
                SampleResult(
                    prompt="p", completion="c", finish_reason="stop", prompt_tokens=7,
                    generated_tokens=tokens, scores=scores, session_id=None,
                ),
            )  # fmt: skip
    return verdicts


def compare(
    database: Database, job_id: str, baseline: str | None = None, **bootstrap: float
) -> JobComparison:
    with database.read() as session:
        conditions = comparisons.read(session, jobs.get(session, job_id), baseline=baseline)
    return conditions.compare(Bootstrap(**bootstrap))  # type: ignore[arg-type]


def test_three_conditions_of_a_hundred_problems_agree_with_scipy_and_statsmodels(
    database: Database, submit: Submit
) -> None:
    job_id = submit(100, conditions=CONDITIONS)
    verdicts = run(database, job_id)
    found = compare(database, job_id, resamples=9999)
    assert found.baseline == "baseline"
    assert list(found.conditions) == ["kind", "stern"]
    for name, condition in found.conditions.items():
        first, second = (
            np.array([verdicts[side, i, 0] for i in range(100)], dtype=float) for side in ("baseline", name)
        )
        metric = condition.metrics[KEY]
        assert (metric.pairs, condition.unpaired) == (100, 0)
        assert metric.baseline == pytest.approx(first[:, 0].mean())
        assert metric.condition == pytest.approx(second[:, 0].mean())
        assert metric.difference == pytest.approx((second - first)[:, 0].mean())
        table = np.histogram2d(first[:, 0], second[:, 0], bins=2)[0]
        assert (metric.only_condition, metric.only_baseline) == (table[0, 1], table[1, 0])
        assert metric.mcnemar_p == pytest.approx(mcnemar(table, exact=True).pvalue)
        for field, column in (("generated_tokens", 1), ("metric", 0)):
            ours = metric if field == "metric" else condition.generated_tokens
            differences = (second - first)[:, column]
            theirs = stats.bootstrap(
                (differences,), np.mean, n_resamples=9999, method="percentile", rng=np.random.default_rng(5)
            ).confidence_interval
            width = theirs.high - theirs.low
            assert ours.difference == pytest.approx(differences.mean())
            assert ours.low == pytest.approx(theirs.low, abs=0.1 * width)
            assert ours.high == pytest.approx(theirs.high, abs=0.1 * width)
        assert condition.prompt_tokens.difference == 0.0
        reward = condition.metrics["length,reward"]
        assert (reward.only_baseline, reward.mcnemar_p) == (None, None)


def test_only_problems_that_both_have_finished_are_paired(database: Database, submit: Submit) -> None:
    job_id = submit(10, conditions=CONDITIONS[:2])
    verdicts = run(database, job_id, leave=3)
    found = compare(database, job_id).conditions["kind"]
    twins = [i for i in range(10) if {("baseline", i, 0), ("kind", i, 0)} <= verdicts.keys()]
    assert 0 < len(twins) < 10
    assert found.metrics[KEY].pairs == len(twins)
    assert found.unpaired == len(verdicts) - 2 * len(twins)


def test_epochs_of_a_problem_count_once(database: Database, submit: Submit) -> None:
    job_id = submit(20, conditions=CONDITIONS[:2], epochs=3)
    verdicts = run(database, job_id)
    metric = compare(database, job_id).conditions["kind"].metrics[KEY]
    differences = [
        np.mean([verdicts["kind", i, e][0] - verdicts["baseline", i, e][0] for e in range(3)])
        for i in range(20)
    ]
    assert metric.pairs == 60
    assert metric.difference == pytest.approx(np.mean(differences))
    assert metric.only_condition is not None
    assert metric.mcnemar_p is None


def test_any_condition_can_be_the_baseline_and_nothing_finished_is_no_error(
    database: Database, submit: Submit
) -> None:
    job_id = submit(2, conditions=CONDITIONS)
    found = compare(database, job_id, "stern")
    assert list(found.conditions) == ["baseline", "kind"]
    empty = found.conditions["kind"]
    assert (empty.metrics, empty.generated_tokens.pairs, empty.generated_tokens.difference) == ({}, 0, None)


def test_what_cannot_be_compared_is_refused(database: Database, submit: Submit) -> None:
    job_id = submit(2, conditions=CONDITIONS)
    with pytest.raises(InvalidRequest, match="no condition sterm; the job has baseline, kind, stern"):
        compare(database, job_id, "sterm")
    with pytest.raises(InvalidRequest, match="a comparison needs two"):
        compare(database, submit(2))
