"""Prompts, stop strings, filters and verdicts of the GSM8K tasks, against lm-eval 0.4.13 itself."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from actograph.contract.job_specs import EvaluationSpec
from actograph.contract.specs import Condition
from evals.dataset_rows import DatasetRow, read_rows
from evals.prompts import TASKS, FewshotSampler, build_prompt
from evals.scoring.scorers import Answer, ScorerSet
from worker.text.chat_template import encode_prompt, render_chat

pytestmark = pytest.mark.integration

Ask = Callable[..., list[dict[str, Any]]]
COUNT = 40
BASELINE = Condition(name="baseline")
FILTERS = ("strict-match", "flexible-extract")


@pytest.fixture(scope="module")
def splits(shared: Path) -> dict[str, list[DatasetRow]]:
    found = {}
    for name in ("train", "test"):
        with (shared / f"data/gsm8k/{name}.jsonl").open("rb") as stream:
            found[name] = read_rows(stream)
    return found


@pytest.fixture(scope="module")
def tokenizer(shared: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(shared / "models/tiny-qwen3")


CONTEXTS: list[dict[str, Any]] = [
    {"op": "contexts", "task": task, "num_fewshot": shots, "chat": chat, "multiturn": turns, "count": COUNT}
    for task in TASKS
    for shots in (0, 5)
    for chat, turns in ((False, False), (True, True), (True, False))
]


def test_prompts_and_their_tokens(
    lm_eval: Ask, splits: dict[str, list[DatasetRow]], tokenizer: PreTrainedTokenizerBase
) -> None:
    def tokens(prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            return encode_prompt(tokenizer, prompt, is_chat=False)
        text = render_chat(tokenizer, prompt, enable_thinking=False)
        return encode_prompt(tokenizer, text, is_chat=True)

    for request, answer in zip(CONTEXTS, lm_eval(*CONTEXTS), strict=True):
        task, shots = TASKS[request["task"]], request["num_fewshot"]
        assert task.stop_strings([]) == answer["until"]
        sampler = FewshotSampler(task, splits["train"], 0 if task.examples else shots, same_dataset=False)
        assert len(answer["prompts"]) == COUNT
        for row, theirs in zip(splits["test"], answer["prompts"], strict=False):
            ours = build_prompt(
                task,
                row,
                BASELINE,
                fewshot=task.examples[:shots] or sampler.choose(row),
                is_chat=request["chat"],
                fewshot_as_multiturn=request["multiturn"],
            )
            expected = json.loads(theirs) if request["chat"] else theirs
            assert ours == expected, request
            assert tokens(ours) == tokens(expected)


CORRUPTIONS: list[Callable[[str], str]] = [
    lambda answer: answer,
    lambda answer: answer.replace("#### ", "The answer is "),
    lambda answer: answer.replace("#### ", "The answer is ") + ".",
    lambda answer: answer.replace("#### ", "The answer is $") + " dollars.",
    lambda answer: answer[:-1],
    lambda answer: answer + "0",
    lambda answer: answer + ".00",
    lambda answer: answer.replace("#### ", "####"),
    lambda answer: answer.partition("####")[0],
    lambda answer: answer + "\n\nQuestion: and 3 more?\nAnswer: #### 7",
    lambda answer: answer.replace(",", ""),
    lambda answer: answer.upper(),
]
ADVERSARIAL = [
    "", " ", "#### ", "####", "#### -", "#### .", "#### ,", "#### $5", "#### 5\n#### 6", "#### ٥",
    "#### 5\u00a0000", "The answer is", "The answer is ", "The answer is 5", "The answer is 42",
    "The answer is 5.", "The answer is 5,", "The answer is -5.", "The answer is .5.", "The answer is 5\n",
    "the answer is 5.", "The answer is 1,000.", "The answer is 5. The answer is 6.", "$", "$$", "-", "--5",
    "-$5", "$-5", "5-", "1.2.3", "...", "5...", ",,", "-.", "5%", "3/4", "1e5", "\\boxed{5}", "５", "x5y6",
    "5\r\n6", "\x85 5", "5\u2028", "a\n#### 5\nb", "#### 5 #### 6", "[invalid]",
]  # fmt: skip
ANSWERS = ["#### 5", "so\n#### 42", "#### 1,000", "#### -5", "#### 0", "x #### 5.", "#### 3.50", "#### $5"]


def compare(lm_eval: Ask, cases: list[tuple[str, str]], tasks: Sequence[str] = tuple(TASKS)) -> None:
    requests = [{"op": "scores", "task": name, "cases": cases} for name in tasks]
    for name, answer in zip(tasks, lm_eval(*requests), strict=True):
        spec = {"kind": "evaluation", "model": "m", "task": name, "dataset": {"path": "x"}}
        spec |= {"scorers": list(FILTERS)}
        scoring = ScorerSet.of(EvaluationSpec.model_validate(spec))
        for (completion, gold), theirs in zip(cases, answer["scores"], strict=True):
            ours = scoring.score(Answer(completion, gold))
            for one in FILTERS:
                score = ours[f"exact_match,{one}"]
                found = [score.answer if score.answer is not None else "[invalid]", score.value]
                assert found == theirs[one], (name, one, completion, gold)


def test_every_gold_answer_with_and_without_corruption(
    lm_eval: Ask, splits: dict[str, list[DatasetRow]]
) -> None:
    """All of them as they are; of each corruption a part, since lm-eval takes a millisecond for each."""
    compare(lm_eval, [(row.answer, row.answer) for rows in splits.values() for row in rows], ["gsm8k"])
    chosen = splits["test"][::40] + splits["train"][::400]
    compare(lm_eval, [(corrupt(row.answer), row.answer) for corrupt in CORRUPTIONS for row in chosen])


def test_adversarial_completions(lm_eval: Ask) -> None:
    pieces = [*ADVERSARIAL, "So 5 + 37 = 42", "\n", " ", ".", "1,000", "Q:", "</s>"]
    chance = random.Random(0)
    mixed = ["".join(chance.choices(pieces, k=chance.randint(2, 6))) for _ in range(300)]
    compare(lm_eval, [(text, answer) for text in ADVERSARIAL + mixed for answer in ANSWERS[::2]])


@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.text(alphabet=st.sampled_from("0123456789.,-$# \n%QTheanswris:x\u00a0٥"), max_size=40)
        | st.from_regex(r"\A.{0,9}(#### |The answer is )[-$0-9.,]{0,8}.?\Z"),
        min_size=200,
        max_size=300,
    )
)
def test_generated_completions(lm_eval: Ask, completions: list[str]) -> None:
    compare(lm_eval, [(text, answer) for text in completions for answer in ANSWERS[:3]])
