"""The beginning of a call, as chat templates write it."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from actograph.contract.errors import InvalidRequest
from worker.text.chat_template import encode_prompt, render_chat
from worker.text.forced_call import begin_call
from worker.text.segments import Markup, SegmentFollower

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("calculator", "weather")
]
ASKED = [
    {"role": "user", "content": "Say <tool_call> if you must."},
    {"role": "assistant", "content": "<tool_call> indeed"},
    {"role": "user", "content": "3 + 4?"},
]


@pytest.fixture
def qwen(shared: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(shared / "models/tiny-qwen3")


@pytest.mark.parametrize("thinks", [True, False])
def test_a_call_begins_as_the_template_writes_one(qwen: PreTrainedTokenizerBase, thinks: bool) -> None:
    waiting = render_chat(qwen, ASKED, enable_thinking=thinks, tools=TOOLS)
    thought = "<think>\n\n</think>\n\n" if thinks else ""
    for name, begun in (
        (None, '<tool_call>\n{"name": "'),
        ("weather", '<tool_call>\n{"name": "weather", "arguments":'),
    ):
        forced = begin_call(qwen, ASKED, TOOLS, enable_thinking=thinks, name=name)
        assert forced.begun == begun
        assert forced.text == waiting + thought + begun


def test_what_follows_is_of_the_call_s_segment(qwen: PreTrainedTokenizerBase) -> None:
    forced = begin_call(qwen, ASKED, TOOLS, enable_thinking=False, name=None)
    markup = Markup(qwen)
    follower = SegmentFollower(markup, encode_prompt(qwen, forced.text, is_chat=True))
    rest = qwen.encode('weather", "arguments": {}}\n</tool_call>ok', add_special_tokens=False)
    names = [follower.next(token) for token in rest]
    end = rest.index(qwen.convert_tokens_to_ids("</tool_call>"))
    assert set(names[: end + 1]) == {"tool_call"} and set(names[end + 1 :]) == {"answer"}
    # an earlier turn that leaves a mark open is over
    waiting = render_chat(qwen, ASKED, enable_thinking=False, tools=TOOLS)
    assert markup.open_at_end(encode_prompt(qwen, waiting, is_chat=True)) is None


LLAMA_S = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": '
    "{{ m.tool_calls[0].function.arguments | tojson }}}{% else %}{{ m.content }}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN_CODER_S = LLAMA_S.replace('{"name": "', "<tool_call>\n<function=").replace('", "parameters": ', ">\n")
HERMES_S = LLAMA_S.replace('{"name": "', '<tool_call>\n{"name":"').replace(
    '", "parameters": ', '","arguments":'
).replace("| tojson }}}", "| tojson }}}\n</tool_call>")  # fmt: skip


def test_templates_that_write_calls_otherwise_are_refused(
    qwen: PreTrainedTokenizerBase, subtests: pytest.Subtests
) -> None:
    for template in [LLAMA_S, QWEN_CODER_S, "{{ messages[0].content }}"]:
        with subtests.test(template=template):
            qwen.chat_template = template
            with pytest.raises(InvalidRequest, match="does not write calls") as raised:
                begin_call(qwen, ASKED, TOOLS, enable_thinking=False, name=None)
            assert raised.value.param == "tool_choice"


def test_the_template_decides_about_white_space(qwen: PreTrainedTokenizerBase) -> None:
    qwen.chat_template = HERMES_S
    forced = begin_call(qwen, ASKED, TOOLS, enable_thinking=False, name="weather")
    assert forced.begun == '<tool_call>\n{"name":"weather","arguments":'
