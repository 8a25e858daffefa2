"""The gsm8k scorers against lm-eval: all expected values were computed with lm-eval 0.4.13's own task."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actograph.contract.resources import Score
from actograph.datasets.dataset_rows import DatasetRow, read_rows
from actograph.scoring.completions import cut_at_stop
from actograph.scoring.scorers import GSM8K_SCORERS, Answered, ScorerSet

STRICT_MATCH = "exact_match,strict-match"
FLEXIBLE_EXTRACT = "exact_match,flexible-extract"
LM_EVAL = ScorerSet(GSM8K_SCORERS[:2])


def score(completion: str, target: str) -> dict[str, Score]:
    return LM_EVAL.score(Answered(completion=completion, target=target))


# completion, target, then for strict-match and flexible-extract: value, extracted answer.
LITERAL_CASES: list[tuple[str, str, int, str | None, int, str | None]] = [
    ("#### 5", "#### 5", 1, "5", 1, "5"),
    ("#### 5.", "#### 5", 1, "5.", 1, "5."),
    ("#### 5..", "#### 5", 0, "5..", 0, "5.."),
    ("#### 5.00", "#### 5", 0, "5.00", 0, "5.00"),
    ("#### $5", "#### 5", 0, None, 1, "$5"),
    ("It costs $5.", "#### 5", 0, None, 1, "$5."),
    ("#### 1,000", "#### 1000", 1, "1,000", 1, "1,000"),
    ("#### 1000", "so\n#### 1,000", 1, "1000", 1, "1000"),
    ("####5", "#### 5", 0, None, 1, "5"),
    ("####  5", "#### 5", 0, None, 1, "5"),
    ("#### -5", "#### -5", 1, "-5", 1, "-5"),
    ("#### -5", "#### 5", 0, "-5", 0, "-5"),
    ("3-5", "#### 5", 0, None, 0, "-5"),
    ("3-15", "#### 15", 0, None, 0, "-15"),
    ("--12", "#### -12", 0, None, 1, "-12"),
    ("#### 5\n#### 9", "#### 5", 1, "5", 0, "9"),
    ("#### 9\n#### 5", "#### 5", 0, "9", 1, "5"),
    ("wait...", "#### 5", 0, None, 0, "..."),
    ("5 ...", "#### 5", 0, None, 0, "..."),
    ("#### ,", "#### 5", 0, ",", 0, None),
    ("#### .", "#### 5", 0, ".", 0, None),
    ("#### -", "#### 5", 0, None, 0, None),
    ("", "#### 5", 0, None, 0, None),
    ("none", "#### 5", 0, None, 0, None),
    ("$", "#### 5", 0, None, 0, None),
    ("$$", "#### $", 0, None, 1, "$$"),
    ("3/4", "#### 4", 0, None, 1, "4"),
    ("1e5", "#### 5", 0, None, 1, "5"),
    ("5%", "#### 5", 0, None, 1, "5"),
    ("12 pears, 5", "#### 5", 0, None, 1, "5"),
    ("12 pears, 5.", "#### 5", 0, None, 1, "5."),
    ("Answer: 5 ####", "#### 5", 0, None, 1, "5"),
    ("#### ٥", "#### ٥", 0, None, 0, None),
    ("#### 5", "a #### 1\n#### 5", 1, "5", 1, "5"),
    ("#### 5", "no number", 0, "5", 0, "5"),
    ("5", "5.", 0, None, 1, "5"),
    ("5..", "5.", 0, None, 0, "5.."),
    ("#### 5 dollars", "#### 5", 1, "5", 1, "5"),
    ("<think>#### 4</think>#### 5", "#### 5", 0, "4", 1, "5"),
    ("ABC", "#### abc", 0, None, 0, None),
    ("#### 5", "#### 5.\n", 0, "5", 0, "5"),
    ("#### 5", "#### 5\n", 0, "5", 0, "5"),
]

# Right answers among GSM8K's 1319 test rows when each is answered by a variant of its own gold answer.
VARIANTS: dict[str, tuple[Callable[[str, str], str], int, int]] = {
    "the answer itself": (lambda answer, gold: answer, 1319, 1319),
    "a dollar sign": (lambda answer, gold: answer.replace(f"#### {gold}", f"#### ${gold}"), 0, 1319),
    "a full stop": (lambda answer, gold: answer + ".", 1319, 1319),
    "upper case": (lambda answer, gold: answer.upper(), 1319, 1319),
    "cents": (lambda answer, gold: answer + ".00", 0, 0),
    "the number alone": (lambda answer, gold: gold, 0, 1319),
    "a sentence": (lambda answer, gold: f"The answer is ${gold}.", 0, 1319),
    "negated": (lambda answer, gold: f"#### -{gold}", 0, 2),
    "no space": (lambda answer, gold: answer.replace("#### ", "####"), 0, 1319),
    "two spaces": (lambda answer, gold: answer.replace("#### ", "####  "), 0, 1319),
    "another afterwards": (lambda answer, gold: answer + "\n#### 7", 1319, 20),
    "another before": (lambda answer, gold: "#### 7\n" + answer, 20, 1319),
    "last digit lost": (lambda answer, gold: answer[:-1], 0, 233),
    "a digit more": (lambda answer, gold: answer + "0", 0, 0),
    "no commas": (lambda answer, gold: "#### " + gold.replace(",", ""), 1319, 1319),
    "nothing": (lambda answer, gold: "", 0, 0),
    "cut before the number": (lambda answer, gold: answer.split("####")[0], 0, 1248),
    "thoughts first": (lambda answer, gold: f"<think>\n{answer}\n</think>\n\nIt is {gold}", 1319, 1319),
    "a unit": (lambda answer, gold: answer + " dollars", 1319, 1319),
    "an equation": (lambda answer, gold: f"{gold}=3*4", 0, 35),
}


@pytest.fixture(scope="module")
def problems(shared: Path) -> list[DatasetRow]:
    with (shared / "data/gsm8k/test.jsonl").open("rb") as stream:
        return read_rows(stream)


def test_literal_cases(subtests: pytest.Subtests) -> None:
    for case in LITERAL_CASES:
        with subtests.test(case=case):
            completion, target, strict, strict_answer, flexible, flexible_answer = case
            scores = score(completion, target)
            assert list(scores) == [STRICT_MATCH, FLEXIBLE_EXTRACT]
            assert (scores[STRICT_MATCH].value, scores[STRICT_MATCH].answer) == (strict, strict_answer)
            assert (scores[FLEXIBLE_EXTRACT].value, scores[FLEXIBLE_EXTRACT].answer) == (
                flexible,
                flexible_answer,
            )


def test_all_gold_answers_and_corruptions_of_them(
    problems: list[DatasetRow], subtests: pytest.Subtests
) -> None:
    for name, (vary, strict, flexible) in VARIANTS.items():
        with subtests.test(name=name):
            scores = [score(vary(row.answer, row.answer.split("#### ")[1]), row.answer) for row in problems]
            assert sum(one[STRICT_MATCH].value for one in scores) == strict
            assert sum(one[FLEXIBLE_EXTRACT].value for one in scores) == flexible


def test_a_missing_answer_is_never_right() -> None:
    assert score("none", "[invalid]")[STRICT_MATCH].value == 0


@pytest.mark.timeout(10)
def test_scoring_takes_linear_time() -> None:
    completion = "7" * 400_000
    assert score(completion, "x" * 400_000)[FLEXIBLE_EXTRACT].answer == completion


def test_cut_at_stop(subtests: pytest.Subtests) -> None:
    for completion, stop, kept in [
        ("#### 5\n\nQuestion: next", ["Question:"], "#### 5\n\n"),
        ("a</s>b<|im_end|>c", ["Question:", "</s>", "<|im_end|>"], "a"),
        ("a<|im_end|>b</s>c", ["Question:", "</s>", "<|im_end|>"], "a"),
        ("STOP", ["STOP"], ""),
        ("unstopped", ["x"], "unstopped"),
        ("unstopped", [], "unstopped"),
        ("empty", [""], "empty"),
        # The first string cuts the second one's earlier occurrence apart: lm-eval keeps "xab".
        ("xabc", ["c", "abc"], "xab"),
        ("xabc", ["abc", "c"], "x"),
    ]:
        with subtests.test(completion=completion, stop=stop, kept=kept):
            assert cut_at_stop(completion, stop) == kept


@given(st.text(alphabet="abQ:\n"), st.lists(st.text(alphabet="abQ:\n", min_size=1, max_size=3)))
def test_nothing_of_a_stop_string_remains(completion: str, stop: list[str]) -> None:
    kept = cut_at_stop(completion, stop)
    assert completion.startswith(kept)
    assert not any(text in kept for text in stop)
