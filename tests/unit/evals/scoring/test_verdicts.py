"""Recorded verdicts. Those of the lm-eval scorers were computed with lm-eval 0.4.13's own task."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from evals.dataset_rows import read_rows
from evals.scoring.completions import cut_at_stop, without_thoughts
from evals.scoring.scorers import GSM8K_SCORERS, Answer, ScorerSet, gold_number

STRICT_MATCH, FLEXIBLE_EXTRACT = "exact_match,strict-match", "exact_match,flexible-extract"


def test_recorded_verdicts(subtests: pytest.Subtests) -> None:
    for line in Path(__file__).with_name("verdicts.jsonl").read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        with subtests.test(**case):
            scorer = ScorerSet([one for one in GSM8K_SCORERS if one.name == case["scorer"]])
            (score,) = scorer.score(Answer(case["completion"], case["target"])).values()
            assert (score.answer, score.value) == (case["answer"], case["value"])


def test_golds(subtests: pytest.Subtests) -> None:
    for gold, value in [
        ("-1,234", "-1234"), ("\u2212 7", "-7"), ("$1,234.50", "1234.5"), ("12%", "12"), ("2½", "2.5"),
        ("3/4", "0.75"), ("٤٢", "42"), ("1e3", "1000"), ("so 5 - 12 = -7\n#### -7", "-7"),
        ("\\boxed{12}", "12"),
    ]:  # fmt: skip
        with subtests.test(gold=gold, value=value):
            assert str(gold_number(gold)) == value


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


def test_all_gold_answers_and_corruptions_of_them(shared: Path, subtests: pytest.Subtests) -> None:
    with (shared / "data/gsm8k/test.jsonl").open("rb") as stream:
        answers = [row.answer for row in read_rows(stream)]
    lm_eval = ScorerSet(GSM8K_SCORERS[:2])
    for name, (vary, strict, flexible) in VARIANTS.items():
        with subtests.test(name=name):
            varied = [Answer(vary(text, text.split("#### ")[1]), text) for text in answers]
            scores = [lm_eval.score(answer) for answer in varied]
            assert sum(one[STRICT_MATCH].value for one in scores) == strict
            assert sum(one[FLEXIBLE_EXTRACT].value for one in scores) == flexible


def test_cut_at_stop(subtests: pytest.Subtests) -> None:
    for completion, stop, kept in [
        ("#### 5\n\nQuestion: next", ["Question:"], "#### 5\n\n"),
        ("a<|im_end|>b</s>c", ["Question:", "</s>", "<|im_end|>"], "a"),
        ("STOP", ["STOP"], ""),
        ("unstopped", [], "unstopped"),
        ("empty", [""], "empty"),
        # the first string cuts the second one's earlier occurrence apart: lm-eval keeps "xab"
        ("xabc", ["c", "abc"], "xab"),
        ("xabc", ["abc", "c"], "x"),
    ]:
        with subtests.test(completion=completion, stop=stop, kept=kept):
            assert cut_at_stop(completion, stop) == kept


def test_think_blocks_go_and_the_rest_stays(subtests: pytest.Subtests) -> None:
    for completion, said in [
        ("so <think>3</think>then <think>4</think>5", "so then 5"),
        ("so <think>3</think>then 4</think>5", "5"),
        ("3</think>5", "5"),
        ("so <think>3", "so "),
        ("<think>3<think>4</think>5", "5"),
    ]:
        with subtests.test(completion=completion, said=said):
            assert without_thoughts(completion) == said
