"""Which tokens `positions` means: counted from the finished sample, and told to the engine on the way."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from actograph.contract.errors import CaptureFailed
from actograph.contract.specs import CaptureSpec
from tests.support.one_turn import due_tokens
from worker.engine.messages import Generation
from worker.sample.conversation import Conversation
from worker.text.segments import Markup, segments


@pytest.fixture(scope="module")
def qwen(shared: Path) -> Any:
    return AutoTokenizer.from_pretrained(shared / "models" / "tiny-qwen3")


@pytest.fixture(scope="module")
def stories(shared: Path) -> Any:
    return AutoTokenizer.from_pretrained(shared / "models" / "stories260k")


def sample(prompt: int, generated: int) -> Generation:
    """A sample of so many tokens, of which none is a marker."""
    return Generation(key="k", prompt_ids=(5,) * prompt, generated_ids=(5,) * generated, finish_reason="stop")


def test_rows_of_ten_prompt_and_five_generated_tokens(qwen: Any, subtests: pytest.Subtests) -> None:
    for hook, positions, rows in [
        ("resid_post.3", "all", range(14)),
        ("resid_post.3", "prompt", range(10)),
        ("resid_post.3", "generated", range(10, 14)),
        ("resid_post.3", "last", range(13, 14)),
        ("resid_post.3", "last_prompt", range(9, 10)),
        ("logits", "all", range(9, 14)),
        ("logits", "prompt", range(9, 10)),
        ("logits", "generated", range(10, 14)),
        ("logits", "last_prompt", range(9, 10)),
        ("resid_post.3", {"stride": 4}, [0, 4, 8, 12]),
        ("logits", {"stride": 4}, [12]),
        ("resid_post.3", {"stride": 100}, [0]),
        ("resid_post.3", [12, 0, -1, 3], [0, 3, 9, 12]),
        ("resid_post.3", [-1, 9], [9]),
        ("logits", [0, 11], [11]),
        ("resid_post.3", "generated[1:3]", [11, 12]),
        ("resid_post.3", "prompt[-2:]", [8, 9]),
        ("logits", "all[8:11]", [9, 10]),
    ]:
        with subtests.test(hook=hook, positions=positions, rows=rows):
            spec = CaptureSpec(positions=positions)
            due = due_tokens(sample(10, 5), spec.positions, Markup(qwen), tail_only=hook == "logits")
            assert due == list(rows)


@pytest.mark.parametrize("number", [14, -11, 1000])
def test_a_token_that_was_not_run_is_an_error_with_the_numbers_that_were(qwen: Any, number: int) -> None:
    with pytest.raises(CaptureFailed, match=rf"token {number}.*10 tokens.*0 to 13"):
        due_tokens(sample(10, 5), CaptureSpec(positions=[0, number]).positions, Markup(qwen))


def named(tokenizer: Any, prompt: str, text: str) -> list[tuple[str, str]]:
    """(segment, its text) of a generation."""
    given, made = tokenizer.encode(prompt), tokenizer.encode(text, add_special_tokens=False)
    ids = [*given, *made]
    runs = segments(Markup(tokenizer), given, made)
    assert [run.start for run in runs] == [0, *(run.stop for run in runs[:-1])]
    assert runs[-1].stop == len(ids)
    return [(run.name, tokenizer.decode(ids[run.start : run.stop])) for run in runs if run.name != "prompt"]


def test_marks_that_are_tokens_delimit_thought_answer_and_call(qwen: Any) -> None:
    text = "<think>one and two</think>It is three<tool_call>{}</tool_call> so"
    assert named(qwen, "1+2?", text) == [
        ("think", "<think>one and two</think>"),
        ("answer", "It is three"),
        ("tool_call", "<tool_call>{}</tool_call>"),
        ("answer", " so"),
    ]


def test_thoughts_that_are_open_closed_or_nested(qwen: Any, subtests: pytest.Subtests) -> None:
    for prompt, text, want in [
        ("a", "three", ["answer"]),
        ("a", "<think>and on", ["think"]),
        ("a<think>\n", "one</think>two", ["think", "answer"]),
        ("a<think>", "one</think>two", ["think", "answer"]),
        ("a<think>\n\n</think>\n\n", "two", ["answer"]),
        ("a<think> not the end of it", "two", ["answer"]),
        ("a", "one</think>two", ["answer"]),
        ("a", "<think>one<tool_call>f</tool_call>two</think>end", ["think", "tool_call", "think", "answer"]),
        ("a", "<think>one<tool_call>f</think>end", ["think", "tool_call", "think", "answer"]),
    ]:
        with subtests.test(prompt=prompt, text=text, want=want):
            assert [name for name, _ in named(qwen, prompt, text)] == want


def test_marks_of_several_tokens_count_where_their_text_is_complete(stories: Any) -> None:
    assert len(stories.encode("<think>", add_special_tokens=False)) > 1
    runs = named(stories, "Lily", "<think>one</think>two")
    assert [name for name, _ in runs] == ["answer", "think", "answer"]
    assert runs[1][1].endswith("</think>")
    assert "one" in runs[1][1] and runs[2][1].strip() == "two"


@pytest.mark.parametrize("tokenizer", ["qwen", "stories"])
def test_annotations_are_calls_where_they_are_asked_for(
    tokenizer: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(tokenizer)
    given, text = model.encode("Q"), "so 4 = <<2+2=4>>4\nif a << b then\n1 >> 0 <<1+1="
    made = model.encode(text, add_special_tokens=False)
    runs = segments(Markup(model, annotations=True), given, made)[1:]
    ids = [*given, *made]
    found = [(run.name, model.decode(ids[run.start : run.stop]).lstrip()) for run in runs]
    # a mark's first tokens belong to what stands before it; a call that is not closed ends with its line
    assert [name for name, _ in found] == ["answer", "tool_call"] * 3
    assert [said for name, said in found if name == "tool_call"] == ["<2+2=4>>", "< b then\n", "<1+1="]
    assert {run.name for run in segments(Markup(model), given, made)} == {"prompt", "answer"}


def test_a_turn_that_keeps_everything_runs_the_token_that_ended_the_last(qwen: Any) -> None:
    """A template that rewrites nothing: the sample is one unbroken sequence."""
    talk = Conversation(Markup(qwen))
    first = talk.begin([5, 6, 7])
    talk.end(first, Generation(key="", prompt_ids=(5, 6, 7), generated_ids=(8, 9), finish_reason="stop"))
    second = talk.begin([5, 6, 7, 8, 9, 10, 11], results_from=5)
    ids = (5, 6, 7, 8, 9, 10, 11)
    talk.end(second, Generation(key="", prompt_ids=ids, generated_ids=(12,), finish_reason="stop"))
    assert talk.token_ids == [*ids, 12]
    assert talk.due_tokens("all", tail_only=False) == list(range(7))
    assert talk.due_tokens("all", tail_only=True) == [2, 3, 6]
    assert talk.due_tokens("generated", tail_only=False) == [3, 4]
    assert talk.due_tokens("tool_result", tail_only=False) == [5, 6]
    assert talk.due_tokens("generated[1:]", tail_only=False) == [4]
    assert talk.due_tokens("turn.0[0]", tail_only=False) == [3]
    assert talk.due_tokens("tool_result[1]", tail_only=False) == [6]
    assert (talk.turns[1].context, talk.turns[1].prompt_tokens) == (5, 2)


@pytest.mark.parametrize("tokenizer", ["qwen", "stories"])
def test_texts_of_tokens_make_the_text(tokenizer: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(tokenizer)
    ids = model.encode("a naïve 🙂 日本 #### 42", add_special_tokens=False)
    texts = Markup(model).texts(ids)
    assert len(texts) == len(ids)
    assert "".join(texts).strip() == "a naïve 🙂 日本 #### 42"
    assert Markup(model).texts(ids[:6])[:5] == texts[:5], "a character that is cut off is marked at its end"
