"""Calls as models write them, good and bad, and what each gives back."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from actograph.contract.job_specs import EvaluationSpec
from actograph.contract.tool_calls import MalformedCall, ToolCall, parse_calls
from evals.tools import CALCULATOR, run_call
from worker.runners.runner import FurtherTurn
from worker.runners.tool_turns import ToolTurns

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "48/2"}}\n</tool_call>'
NEEDS = 'Error: calculator needs {"expression": "..."}, a text such as "48/2"'
SUM = ToolCall("calculator", {"expression": "48/2"})


def test_calls_are_found(subtests: pytest.Subtests) -> None:
    for text, calls in [
        ("The answer is 24.\n#### 24", []),
        (CALL, [SUM]),
        (f"I shall halve it.\n{CALL}\n{CALL}", [SUM, SUM]),
        (f"<think>\nmaybe {CALL}\n</think>\n\n#### 24", []),
        (f"<think>\nhm\n</think>\n\n{CALL}", [SUM]),
        (f"a thought that the prompt opened\n</think>\n{CALL}", [SUM]),
        (f"<think>\nnever closed {CALL}", []),
        (CALL.removesuffix("</tool_call>"), [SUM]),
        (
            '<tool_call>{"name": "calculator", "arguments": "{\\"expression\\": \\"48/2\\"}"}</tool_call>',
            [SUM],
        ),
        ('<tool_call>{"name": "calculator", "parameters": {"expression": "48/2"}}</tool_call>', [SUM]),
        ('<tool_call>{"name": "clock"}</tool_call>', [ToolCall("clock", {})]),
    ]:
        with subtests.test(text=text, calls=calls):
            assert parse_calls(text) == calls


def test_a_call_that_cannot_be_read_says_why(subtests: pytest.Subtests) -> None:
    for body, says in [
        ('{"name": "calculator", "arguments": {"expression": "1+1"}', "not valid JSON"),
        ("calculator(1+1)", "not valid JSON"),
        ("", "not valid JSON"),
        ("[1]", "names no tool"),
        ('{"arguments": {}}', "names no tool"),
        ('{"name": 3}', "names no tool"),
        ('{"name": "calculator", "arguments": [1]}', "no object"),
        ('{"name": "calculator", "arguments": "1+1"}', "arguments are not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
    ]:
        with subtests.test(body=body, says=says):
            [call] = parse_calls(f"<tool_call>{body}</tool_call>")
            assert isinstance(call, MalformedCall)
            assert says in call.reason
            result = run_call(call, [CALCULATOR])
            assert result.error
            assert result.content.startswith("Error: ")


def test_an_unclosed_call_that_is_cut_is_malformed() -> None:
    [call] = parse_calls('<tool_call>{"name": "calc')
    assert isinstance(call, MalformedCall)
    assert "not closed" in call.reason


def test_calls_are_run(subtests: pytest.Subtests) -> None:
    for call, content in [
        (SUM, "24"),
        (ToolCall("calculator", {"expression": 3.5}), "3.5"),
        (ToolCall("calculator", {"expression": "1/0"}), "Error: division by zero"),
        (ToolCall("calculator", {}), NEEDS),
        (ToolCall("calculator", {"expression": None}), NEEDS),
        (ToolCall("clock", {}), 'Error: there is no tool "clock"; the tools are calculator'),
    ]:  # fmt: skip
        with subtests.test(call=call, content=content):
            result = run_call(call, [CALCULATOR])
            assert result.content == content
            assert result.error == content.startswith("Error")


ASKED: list[dict[str, Any]] = [{"role": "user", "content": "Halve 48."}]


def turns_of(tokenizer: Any) -> ToolTurns:
    body = {"kind": "evaluation", "model": "m", "dataset": {"path": "a.jsonl"}, "tools": "calculator"}
    spec = EvaluationSpec.model_validate(body | {"enable_thinking": False})
    return ToolTurns(spec, tokenizer, [CALCULATOR])


def after(tokenizer: Any, said: str) -> FurtherTurn:
    """The turn that follows this one."""
    ids = tokenizer.encode(said, add_special_tokens=False)
    found = turns_of(tokenizer).further(ASKED, [ids], [])
    assert isinstance(found, FurtherTurn)
    return found


@pytest.fixture(scope="module")
def qwen(shared: Path) -> Any:
    return AutoTokenizer.from_pretrained(shared / "models" / "tiny-qwen3")


def test_results_are_rendered_as_the_template_wants_them(qwen: Any) -> None:
    assert after(qwen, f"Well:\n{CALL}").prompt.text.endswith(
        f"<|im_start|>assistant\nWell:\n{CALL}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n24\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    broken = '<tool_call>\n{"name": calculator}\n</tool_call>'
    text = after(qwen, broken).prompt.text
    assert f"<|im_start|>assistant\n{broken}<|im_end|>" in text
    assert "<tool_response>\nError: the call is not valid JSON" in text
    thought = f"<think>\n48 is 2*24\n</think>\n\n{CALL}"
    assert f"<|im_start|>assistant\n{thought}" in after(qwen, thought).prompt.text
    assert turns_of(qwen).further(ASKED, [qwen.encode("#### 24")], []) == "answer"


def test_a_call_runs_once(qwen: Any) -> None:
    form, turns, called = turns_of(qwen), [], []  # type: ignore[var-annotated]
    for said, result in [("48/2", "24"), ("24*2", "48")]:
        turns.append(qwen.encode(CALL.replace("48/2", said), add_special_tokens=False))
        assert isinstance(form.further(ASKED, turns, called), FurtherTurn)
        assert called[-1][0].content == result
    assert [len(results) for results in called] == [1, 1]


def test_results_begin_after_the_turn_that_called(qwen: Any) -> None:
    found = after(qwen, CALL)
    start = "\n<|im_start|>user\n<tool_response>\n24"
    assert qwen.decode(found.prompt.token_ids[found.results_from :]).startswith(start)
    # a tokenizer whose end token the template does not write: what both have in common
    other = AutoTokenizer.from_pretrained(qwen.name_or_path)
    other.eos_token = "<|endoftext|>"
    found = after(other, CALL)
    assert 0 < found.results_from < len(found.prompt.token_ids)
