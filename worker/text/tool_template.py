"""Whether a chat template offers tools in the form that evaluations read."""

from typing import Any

from jinja2 import TemplateError

from actograph.contract.tool_calls import OPEN
from worker.text.tokenizer import Tokenizer

_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look up a word.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}


def offers_tools(tokenizer: Tokenizer) -> bool:
    """True if the chat template describes tools and asks for calls in `<tool_call>`."""
    if not tokenizer.chat_template:
        return False
    question = [{"role": "user", "content": "?"}]
    try:
        without = str(tokenizer.apply_chat_template(question, tokenize=False))
        offered = str(tokenizer.apply_chat_template(question, tools=[_TOOL], tokenize=False))
    except (TemplateError, TypeError, ValueError):
        return False
    return OPEN in offered and offered != without
