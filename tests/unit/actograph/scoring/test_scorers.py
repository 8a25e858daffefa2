"""Scorers named as data, the rewards, and what a target must be."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from actograph.contract.errors import InvalidDataset, InvalidRequest
from actograph.contract.resources import Score
from actograph.contract.tasks import SCORER_NAMES, ScorerList
from actograph.scoring.rewards import annotation_reward, efficiency_reward, format_reward
from actograph.scoring.scorers import Answered, ScorerSet

SCORERS: TypeAdapter[Any] = TypeAdapter(ScorerList)


def score(scorer: Any, completion: str, target: str = "5", tokens: int | None = None) -> Score:
    scorers = ScorerSet(SCORERS.validate_python([scorer]))
    (found,) = scorers.score(Answered(completion=completion, target=target, generated_tokens=tokens)).values()
    return found


def test_keys_are_lm_evals_metric_keys_in_the_order_named() -> None:
    named = [
        "numeric",
        "strict-match",
        {"name": "format"},
        {"name": "numeric", "label": "loose", "tolerance": 0.01},
    ]
    assert ScorerSet(SCORERS.validate_python(named)).keys == [
        "exact_match,numeric", "exact_match,strict-match", "format,none", "exact_match,loose",
    ]  # fmt: skip


def test_a_name_alone_is_enough_for_what_has_defaults(subtests: pytest.Subtests) -> None:
    for name in [n for n in SCORER_NAMES if n != "efficiency"]:
        with subtests.test(name=name):
            assert score(name, "<<2+3=5>>\n#### 5").value == (name != "exact")


def test_what_is_no_list_of_scorers_is_refused(subtests: pytest.Subtests) -> None:
    for wrong in [
        [],
        ["strict"],
        ["numeric", "numeric"],
        ["efficiency"],
        [{"name": "numeric", "tolerance": -1}],
        [{"name": "numeric", "tolerence": 1}],
        [{"name": "efficiency", "target_tokens": 5, "max_tokens": 5}],
        [{"name": "format", "answer_marker": None}],
        ["numeric"] * 17,
    ]:
        with subtests.test(wrong=wrong), pytest.raises(ValidationError):
            SCORERS.validate_python(wrong)


def test_two_of_one_key_ask_for_a_label() -> None:
    with pytest.raises(ValidationError, match="would write exact_match,numeric; give one of them a label"):
        SCORERS.validate_python(["numeric", "numeric"])


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


def test_format(subtests: pytest.Subtests) -> None:
    for completion, value, answer in [
        ("<think>hm</think>\n#### 5", 1.0, "5"),
        ("hm</think>\n#### 5 eggs\nbye", 1.0, "5 eggs"),
        ("#### 5", 0.5, "5"),
        ("<think></think>#### 5", 0.5, "5"),
        ("<think>hm #### 5", 0.0, None),
        ("<think>hm</think>#### 5\n#### 6", 0.5, None),
        ("<think>hm</think>5", 0.5, None),
        ("<think>hm</think>####", 0.5, None),
        ("<think>a</think><think>b</think>#### 5", 0.5, "5"),
        ("first <think>a</think>#### 5", 0.5, "5"),
        ("", 0.0, None),
    ]:
        with subtests.test(completion=completion, value=value, answer=answer):
            scored = format_reward(completion, think_required=True, answer_marker="####")
            assert scored == Score(value=value, answer=answer)


def test_format_with_a_marker_of_your_own() -> None:
    marker = {"name": "format", "answer_marker": "Answer: "}
    assert score(marker, "Answer: B").value == 1.0
    assert score(marker, "It is B").value == 0.0


def test_efficiency(subtests: pytest.Subtests) -> None:
    for tokens, value in [(1, 1.0), (100, 1.0), (150, 0.75), (200, 0.5), (300, 0.0), (999, 0.0)]:
        with subtests.test(tokens=tokens, value=value):
            scored = efficiency_reward(tokens, target_tokens=100, max_tokens=300)
            assert scored == Score(value=value, answer=str(tokens))


def test_annotations(subtests: pytest.Subtests) -> None:
    for completion, value, answer in [
        ("<<48/2=24>>24 and <<48+24=73>>73", 0.5, "1/2"),
        ("<<48/2=24>>24", 1.0, "1/1"),
        ("<<x*2=6>>6", 0.0, "0/1"),
        ("no working\n#### 5", 0.25, None),
        ("<<48/2=", 0.25, None),
    ]:
        with subtests.test(completion=completion, value=value, answer=answer):
            assert annotation_reward(completion, without=0.25) == Score(value=value, answer=answer)
            named = {"name": "annotations", "without": 0.25}
            assert score(named, completion) == Score(value=value, answer=answer)


def test_efficiency_takes_the_jobs_limit_and_needs_a_length() -> None:
    spec = SCORERS.validate_python([{"name": "efficiency", "target_tokens": 100}])
    scorers = ScorerSet(spec, max_tokens=200)
    answered = Answered(completion="", target="5", generated_tokens=150)
    assert scorers.score(answered)["efficiency,none"].value == 0.5
    with pytest.raises(InvalidRequest, match="efficiency needs max_tokens"):
        ScorerSet(spec)
    with pytest.raises(InvalidRequest, match="must be smaller than max_tokens 100"):
        ScorerSet(spec, max_tokens=100)
    with pytest.raises(InvalidRequest, match="needs generated_tokens"):
        scorers.score(Answered(completion="", target="5"))


def test_a_target_without_a_number_is_refused_by_the_numeric_scorer(subtests: pytest.Subtests) -> None:
    for target in ["five", "#### five", "", "3 or 4", "#### "]:
        with subtests.test(target=target):
            with pytest.raises(InvalidDataset, match="numeric scorer needs"):
                ScorerSet(SCORERS.validate_python(["numeric"])).check_target(target)
            if target:
                ScorerSet(SCORERS.validate_python(["includes"])).check_target(target)
