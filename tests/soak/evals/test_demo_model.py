"""The shipped model solves the shipped problems: plain transformers, our prompts and scorers."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from actograph.contract.specs import Condition
from actograph.datasets.dataset_rows import DatasetRow, read_rows
from actograph.demo import MODEL_DIR, PROBLEMS
from actograph.scoring.completions import cut_at_stop
from actograph.scoring.scorers import GSM8K_SCORERS, Answered, ScorerSet
from actograph.tasks.prompts import TASKS, FewshotSampler, build_prompt
from worker.text.chat_template import render_chat

pytestmark = pytest.mark.integration

GSM8K = TASKS["gsm8k"]
BASELINE = Condition(name="baseline")
STRICT = "exact_match,strict-match"


@pytest.fixture(scope="module")
def rows() -> list[DatasetRow]:
    with PROBLEMS.open("rb") as stream:
        return read_rows(stream)


@pytest.fixture(scope="module")
def tested(rows: list[DatasetRow]) -> list[DatasetRow]:
    return rows[::5]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(MODEL_DIR)


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    loaded: Any = AutoModelForCausalLM.from_pretrained(MODEL_DIR)
    yield loaded.eval()
    torch.set_num_threads(threads)


@torch.no_grad()
def complete(model: Any, tokenizer: PreTrainedTokenizerBase, prompts: list[str]) -> list[str]:
    inputs = tokenizer(prompts, add_special_tokens=False, padding=True, return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=100, do_sample=False)
    new = output[:, inputs["input_ids"].shape[1] :]
    return list(tokenizer.batch_decode(new, skip_special_tokens=True))


def strict_accuracy(completions: list[str], rows: list[DatasetRow], stop: list[str]) -> float:
    scorers = ScorerSet(GSM8K_SCORERS)
    scores = [
        scorers.score(Answered(completion=cut_at_stop(text, stop), target=row.answer))
        for text, row in zip(completions, rows, strict=True)
    ]
    return sum(score[STRICT].value for score in scores) / len(scores)


@pytest.mark.parametrize("enable_thinking", [False, True])
def test_chat(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    tested: list[DatasetRow],
    enable_thinking: bool,
) -> None:
    prompts = []
    for row in tested:
        messages = build_prompt(GSM8K, row, BASELINE, fewshot=[], is_chat=True)
        assert isinstance(messages, list)
        prompts.append(render_chat(tokenizer, messages, enable_thinking=enable_thinking))
    completions = complete(model, tokenizer, prompts)
    assert len(tested) == 40
    assert strict_accuracy(completions, tested, []) >= 0.95
    assert all(text.startswith("<think>\n") is enable_thinking for text in completions)


def test_plain_prompt(model: Any, tokenizer: PreTrainedTokenizerBase, tested: list[DatasetRow]) -> None:
    prompts = [build_prompt(GSM8K, row, BASELINE, fewshot=[], is_chat=False) for row in tested]
    completions = complete(model, tokenizer, [str(prompt) for prompt in prompts])
    assert strict_accuracy(completions, tested, GSM8K.stop_strings([])) >= 0.95


def test_a_conditions_suffix_does_not_confuse_it(
    model: Any, tokenizer: PreTrainedTokenizerBase, tested: list[DatasetRow]
) -> None:
    condition = Condition(name="career", suffix="This is very important to my career.")
    prompts = []
    for row in tested:
        messages = build_prompt(GSM8K, row, condition, fewshot=[], is_chat=True)
        assert isinstance(messages, list)
        prompts.append(render_chat(tokenizer, messages, enable_thinking=False))
    assert strict_accuracy(complete(model, tokenizer, prompts), tested, []) >= 0.9


def test_two_examples(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[DatasetRow],
    tested: list[DatasetRow],
) -> None:
    sampler = FewshotSampler(rows, 2, same_dataset=True)
    prompts = []
    for row in tested:
        messages = build_prompt(GSM8K, row, BASELINE, fewshot=sampler.choose(row), is_chat=True)
        assert isinstance(messages, list)
        prompts.append(render_chat(tokenizer, messages, enable_thinking=False))
    assert strict_accuracy(complete(model, tokenizer, prompts), tested, []) >= 0.9


def test_every_layer_takes_part(model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """A choice of layers means something: each one changes the residual stream."""
    inputs = tokenizer("Question: Ada had 12 seeds.", return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        hidden = model(**inputs, output_hidden_states=True).hidden_states
    assert len(hidden) == 4
    for before, after in pairwise(hidden):
        assert (after - before).norm() > 0.1 * before.norm()
