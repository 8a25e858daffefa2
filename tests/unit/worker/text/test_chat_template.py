"""Rendering and encoding with two real tokenizers: one with a chat template, one without but with a BOS."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from actograph.contract.errors import InvalidRequest
from actograph.demo import MODEL_DIR
from worker.text.chat_template import (
    encode_prompt,
    is_chat_prompt,
    render_chat,
    template_sha256,
)
from worker.text.tokenizer import special_ids, tokenizer_data, tokenizer_of, tokenizer_sha256

CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Évaluer",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}
USER = {"role": "user", "content": "U"}


@pytest.fixture
def demo() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(MODEL_DIR)


@pytest.fixture
def llama(shared: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(shared / "models/stories260k")


@pytest.fixture
def qwen(shared: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(shared / "models/tiny-qwen3")


def test_a_template_that_is_not_there_is_refused(llama: PreTrainedTokenizerBase) -> None:
    with pytest.raises(InvalidRequest, match="has no chat template") as caught:
        is_chat_prompt(llama, True)
    assert caught.value.param == "apply_chat_template"
    with pytest.raises(InvalidRequest, match="has no chat template") as caught:
        render_chat(llama, [USER], enable_thinking=False)
    assert caught.value.param == "messages"


def test_rendering_is_the_tokenizers_own(qwen: PreTrainedTokenizerBase) -> None:
    messages = [{"role": "system", "content": "S"}, USER]
    for thinks in (True, False):
        assert render_chat(qwen, messages, enable_thinking=thinks) == qwen.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=thinks
        )


def test_messages_that_the_template_refuses(demo: PreTrainedTokenizerBase) -> None:
    with pytest.raises(InvalidRequest, match="refuses these messages: unknown role narrator") as caught:
        render_chat(demo, [{"role": "narrator", "content": "Once"}], enable_thinking=False)
    assert caught.value.param == "messages"


def test_demo_template_keeps_thoughts_of_the_last_answer_alone(demo: PreTrainedTokenizerBase) -> None:
    messages = [
        USER,
        {"role": "assistant", "content": "A", "reasoning_content": "old"},
        USER,
        {"role": "assistant", "content": "B", "reasoning_content": "\nnew\n"},
    ]
    assert render_chat(demo, messages, enable_thinking=True, add_generation_prompt=False) == (
        "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
        "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n<think>\nnew\n</think>\n\nB<|im_end|>\n"
    )


def test_demo_template_writes_tools_as_qwen_does(demo: PreTrainedTokenizerBase) -> None:
    calls = [
        {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "1+1"}}},
        {"type": "function", "function": {"name": "calculator", "arguments": '{"expression": "2+2"}'}},
    ]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "S"},
        USER,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "2"},
        {"role": "tool", "content": "4"},
    ]
    text = render_chat(demo, messages, enable_thinking=True, tools=[CALCULATOR])
    assert text.startswith("<|im_start|>system\nS\n\n# Tools\n")
    assert (
        '<tools>\n{"type": "function", "function": {"name": "calculator", "description": "Évaluer", '
        '"parameters": {"type": "object", "properties": {"expression": {"type": "string"}}}}}\n</tools>\n'
    ) in text
    assert text.endswith(
        "<|im_start|>user\nU<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n'
        '</tool_call>\n<tool_call>\n{"name": "calculator", "arguments": {"expression": "2+2"}}\n'
        "</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n2\n</tool_response>\n<tool_response>\n4\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_chat_gets_no_second_bos(llama: PreTrainedTokenizerBase) -> None:
    llama.chat_template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    text = render_chat(llama, [{"role": "user", "content": "Once"}], enable_thinking=False)
    assert text == "<s>Once"
    assert encode_prompt(llama, text, is_chat=True).count(llama.bos_token_id) == 1


def test_plain_text_gets_the_tokenizers_bos_once(llama: PreTrainedTokenizerBase) -> None:
    plain = encode_prompt(llama, "Once upon", is_chat=False)
    assert plain == llama.encode("Once upon")
    assert plain[0] == llama.bos_token_id
    assert encode_prompt(llama, "<s>Once upon", is_chat=False).count(llama.bos_token_id) == 1


def test_a_prompt_without_tokens_is_refused(demo: PreTrainedTokenizerBase) -> None:
    with pytest.raises(InvalidRequest, match="no tokens"):
        encode_prompt(demo, "", is_chat=False)


def test_digests_tell_templates_and_tokenizers_apart(
    demo: PreTrainedTokenizerBase, llama: PreTrainedTokenizerBase, qwen: PreTrainedTokenizerBase
) -> None:
    assert template_sha256(llama) is None
    assert template_sha256(demo) != template_sha256(qwen)
    assert len({tokenizer_sha256(one) for one in (demo, llama, qwen)}) == 3


def test_digest_of_a_tokenizer_does_not_change_with_use(demo: PreTrainedTokenizerBase) -> None:
    before = tokenizer_sha256(demo)
    demo(["1", "1 2 3"], padding=True, truncation=True, max_length=2)
    demo.chat_template = "other"
    assert tokenizer_sha256(demo) == before == tokenizer_sha256(AutoTokenizer.from_pretrained(MODEL_DIR))
    demo.add_tokens(["<new>"])
    assert tokenizer_sha256(demo) != before


def test_a_tokenizer_crosses_to_another_process_unchanged(
    demo: PreTrainedTokenizerBase,
    llama: PreTrainedTokenizerBase,
    qwen: PreTrainedTokenizerBase,
    subtests: pytest.Subtests,
) -> None:
    for name, one in (("demo", demo), ("llama", llama), ("qwen", qwen)):
        with subtests.test(name):
            made = tokenizer_of(json.loads(json.dumps(tokenizer_data(one))))
            for text in ("<s>Once upon", " a\n<think>b</think> 12+3=", "Évaluer \U0001f600"):
                for special in (True, False):
                    ids = one.encode(text, add_special_tokens=special)
                    assert made.encode(text, add_special_tokens=special) == ids
                    assert made.decode(ids) == one.decode(ids)
            assert special_ids(made) == special_ids(one)
            assert template_sha256(made) == template_sha256(one)
            changed = tokenizer_data(one) | {"special_tokens": {"eos_token": "<other>"}}
            with pytest.raises(ValueError, match="unchanged"):
                tokenizer_of(changed)


def test_a_tokenizer_written_in_python_does_not_cross() -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        tokenizer_data(object())  # type: ignore[arg-type]
