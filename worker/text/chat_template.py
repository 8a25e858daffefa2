"""Chat templates, prompt encoding, and the digests that identify both."""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from types import MappingProxyType
from typing import Any

from jinja2.exceptions import TemplateError

from actograph.contract.errors import InvalidRequest
from worker.text.tokenizer import Tokenizer


def has_chat_template(tokenizer: Tokenizer) -> bool:
    return bool(tokenizer.chat_template)


def is_chat_prompt(tokenizer: Tokenizer, apply_chat_template: bool | None) -> bool:
    """Whether prompts are chats; null: if the tokenizer has a template.

    Raises:
        InvalidRequest: a template is requested and the tokenizer has none.
    """
    if apply_chat_template and not has_chat_template(tokenizer):
        raise _no_template("apply_chat_template")
    return has_chat_template(tokenizer) if apply_chat_template is None else apply_chat_template


def render_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    enable_thinking: bool,
    add_generation_prompt: bool = True,
    continues: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """The conversation as one text, special tokens included.

    Args:
        variables: further ones of the template; those that it does not know are ignored.

    With `continues` it ends with the text of the last message. Templates that know no `enable_thinking`
    ignore it.

    Raises:
        InvalidRequest: there is no template, or it refuses these messages (a system message, or roles that
            do not alternate).
    """
    if not has_chat_template(tokenizer):
        raise _no_template("messages")
    try:
        text = tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=[dict(tool) for tool in tools] if tools else None,
            tokenize=False,
            add_generation_prompt=add_generation_prompt and not continues,
            continue_final_message=continues,
            enable_thinking=enable_thinking,
            **variables,
        )
    except (TemplateError, TypeError, ValueError) as error:
        raise InvalidRequest(
            f"the model's chat template refuses these messages: {error}", param="messages"
        ) from error
    assert isinstance(text, str)
    return text


def encode_prompt(tokenizer: Tokenizer, text: str, *, is_chat: bool) -> list[int]:
    """Token ids of a prompt.

    A rendered chat has its special tokens in the text, so none are added. Plain text gets
    those that the tokenizer adds by default (for some a BOS, for some none), unless it begins
    with the BOS already.

    Raises:
        InvalidRequest: the text has no tokens.
    """
    bos = tokenizer.bos_token
    complete = is_chat or (isinstance(bos, str) and bool(bos) and text.startswith(bos))
    ids: list[int] = tokenizer.encode(text, add_special_tokens=not complete)
    if not ids:
        raise InvalidRequest("the prompt has no tokens; give it some text", param="prompt")
    return ids


def template_sha256(tokenizer: Tokenizer) -> str | None:
    """sha256 (hex) of the chat template; None if there is none."""
    if not has_chat_template(tokenizer):
        return None
    template = tokenizer.chat_template
    text = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
    return sha256(text.encode()).hexdigest()


def _no_template(param: str) -> InvalidRequest:
    return InvalidRequest(
        "the model's tokenizer has no chat template; send plain prompts (apply_chat_template: false) "
        "or use a model with a template",
        param=param,
    )
