"""Means against lm-eval 0.4.13, pass@k and majority votes against their definitions."""

from itertools import combinations
from math import sqrt

import numpy as np
import pytest

from actograph.contract.resources import Score
from evals.statistics.metrics import add_problem, majority, pass_at_k, shown

KEY = "exact_match,strict-match"


def said(*answers: str | None, gold: str = "5") -> list[Score]:
    return [Score(value=float(answer == gold), answer=answer) for answer in answers]


def test_pass_at_k_is_the_share_of_all_draws_with_a_right_answer(subtests: pytest.Subtests) -> None:
    for answers in range(1, 8):
        with subtests.test(answers=answers):
            for right in range(answers + 1):
                verdicts = [True] * right + [False] * (answers - right)
                for k in range(1, answers + 1):
                    draws = [any(draw) for draw in combinations(verdicts, k)]
                    assert pass_at_k(answers, right, k) == pytest.approx(sum(draws) / len(draws), abs=1e-15)


def test_majority(subtests: pytest.Subtests) -> None:
    for answers, verdict in [
        (("5", "4", "5"), 1.0),
        (("4", "5", "4"), 0.0),
        (("4", "5"), 0.0),  # of equals the first
        (("5", "4"), 1.0),
        (("7", "4", "5", "5", "4"), 0.0),  # of equals the first seen, not the last to reach its number
        ((None, None, "5"), 1.0),  # no answer, no vote
        ((None, None), 0.0),
    ]:
        with subtests.test(answers=answers, verdict=verdict):
            assert majority(said(*answers)) == verdict


def of_epochs(scores: list[dict[str, Score]], problems: list[int], epochs: int) -> dict[str, float | None]:
    """The metrics of a job; `problems` has the problem of each sample."""
    values: dict[str, list[float]] = {}
    for problem in dict.fromkeys(problems):
        group = [sample for sample, of in zip(scores, problems, strict=True) if of == problem]
        add_problem(values, group, epochs)
    return shown(values)


def test_metrics_of_a_job() -> None:
    problems = {0: ("5", "5", "4", None), 1: ("4", "5", "4", "4"), 2: ("5", "5", "5", "5")}
    scores = [{KEY: score} for answers in problems.values() for score in said(*answers)]
    found = of_epochs(scores, [p for p in problems for _ in range(4)], 4)
    values = {
        "pass@1": [0.5, 0.25, 1.0],
        "pass@2": [1 - 1 / 6, 1 - 3 / 6, 1.0],
        "pass@4": [1.0, 1.0, 1.0],
        "maj@4": [1.0, 0.0, 1.0],
    }
    assert list(found) == [f"{name}{part},strict-match" for name in values for part in ("", "_stderr")]
    for name, expected in values.items():
        assert found[f"{name},strict-match"] == pytest.approx(np.mean(expected))
        stderr = np.std(expected, ddof=1) / sqrt(3)
        assert found[f"{name}_stderr,strict-match"] == pytest.approx(stderr)


def test_scorers_that_are_not_right_or_wrong_are_left_out_and_keys_do_not_meet() -> None:
    one = {
        "exact_match,none": Score(value=0.0, answer="five"),
        "includes,none": Score(value=1.0, answer="5"),
        "efficiency,none": Score(value=1.0),
    }
    found = of_epochs([one, one], [0, 0], 2)
    assert {key for key in found if "_stderr" not in key} == {
        "pass@1,none", "pass@2,none", "maj@2,none", "includes_pass@1,none", "includes_pass@2,none",
    }  # fmt: skip
    assert (found["pass@2,none"], found["includes_pass@2,none"]) == (0.0, 1.0)


def test_mean_and_standard_error_under_lm_evals_keys() -> None:
    found = shown({KEY: [1.0, 0.0, 0.0, 1.0, 1.0], "includes,none": [1.0]})
    assert list(found) == [KEY, "exact_match_stderr,strict-match", "includes,none", "includes_stderr,none"]
    assert found[KEY] == pytest.approx(0.6, abs=1e-15)
    assert found["exact_match_stderr,strict-match"] == pytest.approx(0.24494897427831783, abs=1e-15)
    assert found["includes_stderr,none"] is None
    whole = shown({KEY: [1.0] * 400 + [0.0] * 919})
    assert whole[KEY] == pytest.approx(0.3032600454890068, abs=1e-15)
    assert whole["exact_match_stderr,strict-match"] == pytest.approx(0.012661502663418695, abs=1e-15)
