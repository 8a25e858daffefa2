"""Grammars of answers, followed by tokens that are drawn at random from the allowed ones."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from actograph.contract.chat.chat_job import AnswerFormat, ChatInput
from actograph.contract.chat.tool_calls import parse_calls
from actograph.contract.errors import InvalidRequest
from worker.runners.answer_constraints import AnswerConstraints
from worker.text.constraints import MAX_GRAMMAR_CHARS, GrammarCompiler, GrammarConstraint
from worker.text.forced_call import begin_call

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "pet": {"enum": ["cat", "dog", None]},
    },
    "required": ["name", "age", "pet"],
    "additionalProperties": False,
}
ASKED = [{"role": "user", "content": "3 + 4?"}]
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PERSON}} for name in ("add", "greet")]
CALL = '<tool_call>\n{"name": "add", "arguments": {"name": "x", "age": 9, "pet": null}}\n</tool_call>'


@pytest.fixture(params=["special", "plain"])
def tokenizer(shared: Path, request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    """A tokenizer that counts the markers among its special tokens, as some do, and one that does not."""
    tokenizer = AutoTokenizer.from_pretrained(shared / "models/tiny-qwen3")
    if request.param == "plain":
        state = json.loads(tokenizer.backend_tokenizer.to_str())
        for token in state["added_tokens"]:
            token["special"] = "tool" not in token["content"] and "think" not in token["content"]
        tokenizer._tokenizer = type(tokenizer.backend_tokenizer).from_str(json.dumps(state))
    return tokenizer


@pytest.fixture
def answers(tokenizer: PreTrainedTokenizerBase) -> AnswerConstraints:
    return AnswerConstraints(compiler(tokenizer))


def compiler(tokenizer: PreTrainedTokenizerBase, **changes: Any) -> GrammarCompiler:
    structure: Any = SimpleNamespace(**{"eos_token_ids": [2], "vocab_size": len(tokenizer), **changes})
    return GrammarCompiler(tokenizer, structure)


def drawn(tokenizer: PreTrainedTokenizerBase, constraint: GrammarConstraint, seed: int) -> str:
    """The text of random tokens up to the end token."""
    draw, ids = random.Random(seed), list[int]()
    while len(ids) < 400:
        token = draw.choice(constraint.mask(ids).nonzero()[:, 0].tolist())
        if token == 2:
            break
        ids.append(token)
    assert constraint.failure is None
    return str(tokenizer.decode(ids))


def accepts(tokenizer: PreTrainedTokenizerBase, constraint: GrammarConstraint, text: str) -> bool:
    """Whether all tokens of a text are allowed, and the end after them."""
    ids: Sequence[int] = tokenizer.encode(text, add_special_tokens=False)
    return all(constraint.mask(ids[:n])[token] for n, token in enumerate([*ids, 2]))


def chat(**changes: Any) -> ChatInput:
    return ChatInput(messages=ASKED, **changes)


@pytest.mark.parametrize("seed", range(5))
def test_random_tokens_become_an_object_of_the_schema(
    tokenizer: PreTrainedTokenizerBase, answers: AnswerConstraints, seed: int
) -> None:
    given = chat(answer_format=AnswerFormat(json_schema=PERSON, strict=True))
    constraint = answers.of_answer(given, None)
    assert constraint is not None
    text = drawn(tokenizer, constraint, seed)
    found = json.loads(text)
    assert list(found) == ["name", "age", "pet"]
    assert len(found["name"]) <= 8 and 0 <= found["age"] < 100 and found["pet"] in ("cat", "dog", None)
    # the same constraint serves the sample's second run
    assert drawn(tokenizer, constraint, seed) == text


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("named", [True, False])
def test_random_tokens_become_the_rest_of_a_begun_call(
    tokenizer: PreTrainedTokenizerBase, answers: AnswerConstraints, seed: int, named: bool
) -> None:
    name = "greet" if named else None
    given = chat(tools=TOOLS, must_call=True, call_name=name, one_call=named)
    forced = begin_call(tokenizer, ASKED, TOOLS, enable_thinking=False, name=name)
    rest = drawn(tokenizer, answers.of_call(given, forced.form), seed)
    calls = parse_calls(forced.begun + rest)
    assert 1 <= len(calls) <= (1 if named else 99)
    for call in calls:
        assert call.name in (["greet"] if named else ["add", "greet"])  # type: ignore[union-attr]
        assert list(call.arguments) == ["name", "age", "pet"]  # type: ignore[union-attr]


def test_a_free_answer_may_call_a_strict_tool_and_no_other(
    tokenizer: PreTrainedTokenizerBase, answers: AnswerConstraints
) -> None:
    form = begin_call(tokenizer, ASKED, TOOLS, enable_thinking=False, name=None).form
    given = chat(tools=TOOLS, strict_tools=["add"])
    free = answers.of_answer(given, form)
    assert free is not None
    for text in ("Just text {}.", CALL, f"<think>\nwell\n</think>\n\nSo: {CALL}\n{CALL} and so on"):
        assert accepts(tokenizer, free, text), text
    for text in (CALL.replace("add", "sub"), CALL.replace("9", '"9"'), CALL.replace("null", "1")):
        assert not accepts(tokenizer, free, text), text
    person = AnswerFormat(json_schema=PERSON, strict=True)
    typed = answers.of_answer(chat(tools=TOOLS, answer_format=person), form)
    assert typed is not None
    for text in (f"{CALL}\n{CALL}", '{"name": "x", "age": 9, "pet": "cat"}'):
        assert accepts(tokenizer, typed, text), text
    assert not accepts(tokenizer, typed, "Just text.")


def test_an_answer_without_format_and_strict_tools_is_free(answers: AnswerConstraints) -> None:
    assert answers.of_answer(chat(tools=TOOLS), None) is None


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "objec"}, "Invalid type: objec"),
        ({"type": "string", "pattern": "("}, "unclosed group|regex"),
        ({"$ref": "http://127.0.0.1/x"}, "does not fetch"),
        ({"not": {"type": "string"}}, "Unimplemented keys"),
        ({"enum": ["x" * MAX_GRAMMAR_CHARS]}, "at most 256000"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused(
    answers: AnswerConstraints, schema: dict[str, Any], why: str
) -> None:
    given = chat(answer_format=AnswerFormat(json_schema=schema, strict=True))
    with pytest.raises(InvalidRequest, match=why) as raised:
        answers.of_answer(given, None)
    assert raised.value.param == "response_format"


def test_a_schema_that_is_not_strict_may_have_other_keywords(
    tokenizer: PreTrainedTokenizerBase, answers: AnswerConstraints
) -> None:
    schema = {"type": "boolean", "not": {"const": True}}
    given = chat(answer_format=AnswerFormat(json_schema=schema, strict=False))
    constraint = answers.of_answer(given, None)
    assert constraint is not None and drawn(tokenizer, constraint, 0) in ("true", "false")


def test_a_model_without_end_token_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    answers = AnswerConstraints(compiler(tokenizer, eos_token_ids=[]))
    given = chat(answer_format=AnswerFormat(json_schema=PERSON, strict=True))
    with pytest.raises(InvalidRequest, match="no end token"):
        answers.of_answer(given, None)


def test_tokens_that_were_not_allowed_are_a_failure(
    tokenizer: PreTrainedTokenizerBase, answers: AnswerConstraints
) -> None:
    constraint = answers.of_answer(chat(answer_format=AnswerFormat(json_schema=PERSON, strict=True)), None)
    assert constraint is not None
    mask = constraint.mask(tokenizer.encode("]", add_special_tokens=False))
    assert constraint.failure is not None and mask.nonzero().tolist() == [[2]]
