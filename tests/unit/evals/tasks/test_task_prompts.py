"""Prompts of the gsm8k task. The pinned few-shot draws and digest come from lm-eval 0.4.13's own task."""

from hashlib import sha256
from pathlib import Path

import pytest

from actograph.contract.errors import InvalidRequest
from actograph.contract.specs import Condition
from evals.dataset_rows import DatasetRow, read_rows
from evals.prompts import TASKS, FewshotSampler, build_prompt

GSM8K = TASKS["gsm8k"]
BASELINE = Condition(name="baseline")


def row(index: int, question: str = "", answer: str = "") -> DatasetRow:
    return DatasetRow(index=index, question=question or f"q{index}?", answer=answer or f"#### {index}")


ROWS = [row(i) for i in range(20)]
EXAMPLES = [row(7), row(3)]


@pytest.fixture(scope="module")
def gsm8k_test(shared: Path) -> list[DatasetRow]:
    with (shared / "data/gsm8k/test.jsonl").open("rb") as stream:
        return read_rows(stream)


@pytest.fixture(scope="module")
def gsm8k_train(shared: Path) -> list[DatasetRow]:
    with (shared / "data/gsm8k/train.jsonl").open("rb") as stream:
        return read_rows(stream)


def test_plain_prompt_with_examples() -> None:
    assert build_prompt(GSM8K, row(1), BASELINE, fewshot=EXAMPLES, is_chat=False) == (
        "Question: q7?\nAnswer: #### 7\n\nQuestion: q3?\nAnswer: #### 3\n\nQuestion: q1?\nAnswer:"
    )


def test_chat_with_examples_as_turns() -> None:
    condition = Condition(name="brief", system="Be brief.")
    assert build_prompt(GSM8K, row(1), condition, fewshot=EXAMPLES, is_chat=True) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Question: q7?\nAnswer:"},
        {"role": "assistant", "content": "#### 7"},
        {"role": "user", "content": "Question: q3?\nAnswer:"},
        {"role": "assistant", "content": "#### 3"},
        {"role": "user", "content": "Question: q1?\nAnswer:"},
    ]


def test_a_condition_changes_the_tested_question_alone(subtests: pytest.Subtests) -> None:
    for prefix, suffix, question in [
        ("", "This is very important to my career.", "q1? This is very important to my career."),
        ("Read with care.", "", "Read with care. q1?"),
        ("Read with care.\n\n", "", "Read with care.\n\nq1?"),
        ("Before.", "After.", "Before. q1? After."),
    ]:
        with subtests.test(prefix=prefix, suffix=suffix, question=question):
            condition = Condition(name="varied", prefix=prefix, suffix=suffix)
            assert build_prompt(GSM8K, row(1), condition, fewshot=EXAMPLES[:1], is_chat=False) == (
                f"Question: q7?\nAnswer: #### 7\n\nQuestion: {question}\nAnswer:"
            )


def test_a_system_message_without_chat_template_is_refused() -> None:
    condition = Condition(name="brief", system="Be brief.")
    with pytest.raises(InvalidRequest, match="'brief' has a system message") as caught:
        build_prompt(GSM8K, row(1), condition, fewshot=[], is_chat=False)
    assert caught.value.param == "conditions"


def test_stop_strings() -> None:
    """In chats too, as in lm-eval."""
    assert GSM8K.stop_strings(["\n\n"]) == ["\n\n", "Question:", "</s>", "<|im_end|>"]
    assert GSM8K.stop_strings(["</s>"]) == ["</s>", "Question:", "<|im_end|>"]


def test_examples_from_another_split_are_those_of_lm_eval(
    gsm8k_test: list[DatasetRow], gsm8k_train: list[DatasetRow]
) -> None:
    sampler = FewshotSampler(TASKS["gsm8k"], gsm8k_train, 5, same_dataset=False)
    chosen = sampler.choose(gsm8k_test[100])
    assert [example.index for example in chosen] == [6785, 2401, 3493, 2787, 1211]
    assert [example.index for example in sampler.choose(gsm8k_test[0])] == [6374, 3610, 957, 61, 742]
    prompt = build_prompt(GSM8K, gsm8k_test[100], BASELINE, fewshot=chosen, is_chat=False)
    assert isinstance(prompt, str)
    assert sha256(prompt.encode()).hexdigest() == (
        "c47df44b0949ef6df72c9914a0ada32ffc8765d4f11e629159fea54357fec957"
    )


def test_too_few_examples_are_refused() -> None:
    with pytest.raises(
        InvalidRequest, match="num_fewshot 20 needs 21 rows to choose from; there are 20"
    ) as caught:
        FewshotSampler(TASKS["gsm8k"], ROWS, 20, same_dataset=True)
    assert caught.value.param == "num_fewshot"
    FewshotSampler(TASKS["gsm8k"], ROWS, 20, same_dataset=False)
    same = [row(i, "same?", "#### 1") for i in range(5)]
    with pytest.raises(InvalidRequest, match="only 0 rows differ from row 2"):
        FewshotSampler(TASKS["gsm8k"], same, 2, same_dataset=True).choose(same[2])
