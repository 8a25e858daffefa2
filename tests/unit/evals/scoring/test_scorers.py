"""Scorers named as data, and what a target must be."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from actograph.contract.errors import InvalidDataset, InvalidRequest
from actograph.contract.resources import Score
from actograph.contract.tasks import Scorer, ScorerList
from evals.scoring.scorers import Answer, ScorerSet

SCORERS: TypeAdapter[Any] = TypeAdapter(ScorerList)


def score(scorer: Any, completion: str, target: str = "5", tokens: int | None = None) -> Score:
    scorers = ScorerSet(SCORERS.validate_python([scorer]))
    (found,) = scorers.score(Answer(completion, target, tokens)).values()
    return found


def test_keys_are_lm_evals_metric_keys_in_the_order_named() -> None:
    named = ["numeric", "strict-match", {"name": "numeric", "label": "loose", "tolerance": 0.01}, "includes"]
    scores = ScorerSet(SCORERS.validate_python(named)).score(Answer("#### 5", "5"))
    assert {key: found.value for key, found in scores.items()} == {
        "exact_match,numeric": 1, "exact_match,strict-match": 1, "exact_match,loose": 1, "includes,none": 1,
    }  # fmt: skip


def test_what_is_no_list_of_scorers_is_refused(subtests: pytest.Subtests) -> None:
    for wrong in [
        [],
        ["two words"],
        ["numeric", "numeric"],
        ["efficiency"],
        [{"name": "numeric", "tolerance": -1}],
        [{"name": "numeric", "tolerence": 1}],
        [{"name": "exact", "tolerance": 0.1}],
        [{"name": "efficiency", "target_tokens": 5, "max_tokens": 5}],
        ["numeric"] * 17,
    ]:
        with subtests.test(wrong=wrong), pytest.raises(ValidationError):
            SCORERS.validate_python(wrong)


def test_strict_match_takes_the_form_of_the_task() -> None:
    cot = {"name": "strict-match", "form": "gsm8k_cot"}
    assert score(cot, "The answer is 5.").answer == "5"
    assert score("strict-match", "The answer is 5.").answer is None
    # as lm-eval has it: the pattern wants one character more
    assert score(cot, "The answer is 42").answer == "4"


def test_a_tolerance_counts_where_decimals_were_rounded(subtests: pytest.Subtests) -> None:
    for completion, target, tolerance, value in [
        ("3.33", "10/3", 0.01, 1.0),
        ("3.33", "10/3", 0.001, 0.0),
        ("3.33", "10/3", 0.0, 0.0),
        ("5.004", "5", 0.005, 1.0),
        # two whole numbers or fractions were not rounded
        ("5", "6", 1.0, 0.0),
        ("1/3", "1/4", 0.5, 0.0),
    ]:
        with subtests.test(completion=completion, target=target, tolerance=tolerance, value=value):
            assert score({"name": "numeric", "tolerance": tolerance}, completion, target).value == value


def test_texts(subtests: pytest.Subtests) -> None:
    for name, completion, target, value, answer in [
        ("exact", " Paris.\n", "paris", 1.0, "Paris."),
        ("exact", "<think>Rome?</think>Paris", "Paris", 1.0, "Paris"),
        ("exact", "It is Paris", "Paris", 0.0, "It is Paris"),
        ("exact", "<think>Paris", "Paris", 0.0, None),
        ("includes", "It is PARIS, I think", "Paris", 1.0, "Paris"),
        ("includes", "It is Rome", "Paris", 0.0, None),
        ("includes", "<think>Paris</think>Rome", "Paris", 0.0, None),
    ]:
        with subtests.test(name=name, completion=completion, target=target, value=value, answer=answer):
            assert score(name, completion, target) == Score(value=value, answer=answer)


def test_efficiency_falls_from_its_target_to_the_jobs_limit(subtests: pytest.Subtests) -> None:
    spec = SCORERS.validate_python([{"name": "efficiency", "target_tokens": 100}])
    scorers = ScorerSet(spec, max_tokens=300)
    for tokens, value in [(1, 1.0), (100, 1.0), (150, 0.75), (300, 0.0), (999, 0.0)]:
        with subtests.test(tokens=tokens, value=value):
            assert scorers.score(Answer("", "5", tokens))["efficiency,none"] == Score(
                value=value, answer=str(tokens)
            )
    for most in (None, 100):
        with pytest.raises(InvalidRequest, match=f"must be smaller than max_tokens {most}"):
            ScorerSet(spec, max_tokens=most)


def test_a_target_without_a_number_is_refused_by_the_numeric_scorer(subtests: pytest.Subtests) -> None:
    for target in ["five", "#### five", "", "3 or 4", "#### "]:
        with subtests.test(target=target):
            with pytest.raises(InvalidDataset, match="numeric scorer needs"):
                ScorerSet(SCORERS.validate_python(["numeric"])).check_target(target)
            if target:
                ScorerSet(SCORERS.validate_python(["includes"])).check_target(target)


def test_format_asks_for_the_form_and_not_for_the_answer(subtests: pytest.Subtests) -> None:
    cases = [
        ({}, "so #### 72", 1.0, "72"),
        ({}, "so #### 5", 1.0, "5"),
        ({}, "The answer is 72.", 0.0, None),
        ({"form": "gsm8k_cot"}, "The answer is 5.", 1.0, "5"),
        ({"form": "gsm8k_cot"}, "#### 72", 0.0, None),
    ]
    for options, completion, value, answer in cases:
        with subtests.test(completion=completion, **options):
            scorers = ScorerSet([Scorer.model_validate({"name": "format"} | options)])
            found = scorers.score(Answer(completion, "#### 72"))
            assert found == {"format,none": Score(value=value, answer=answer)}
