"""Prompts from text, and text from tokens, for every job kind."""

from collections.abc import Sequence

from actograph.contract.errors import InvalidRequest
from evals.prompts import ChatMessages
from evals.scoring.completions import cut_at_stop
from worker.runners.runner import Prompt
from worker.text.chat_template import encode_prompt, render_chat
from worker.text.text_stream import REPLACEMENT
from worker.text.tokenizer import Tokenizer, special_ids


def encode(tokenizer: Tokenizer, text: str, *, is_chat: bool, most_tokens: int | None = None) -> Prompt:
    """Prompt of a text, cut to `most_tokens`. Raises InvalidRequest if the text has no tokens."""
    ids = encode_prompt(tokenizer, text, is_chat=is_chat)
    if not ids:
        raise InvalidRequest("the prompt has no tokens", param="prompt")
    cut = most_tokens is not None and len(ids) > most_tokens
    return Prompt(text=text, token_ids=tuple(ids[:most_tokens]), truncated_from=len(ids) if cut else None)


def encode_built(tokenizer: Tokenizer, built: str | ChatMessages, *, enable_thinking: bool) -> Prompt:
    """A task's prompt: plain text, or the messages of a chat."""
    if isinstance(built, str):
        return encode(tokenizer, built, is_chat=False)
    return encode(tokenizer, render_chat(tokenizer, built, enable_thinking=enable_thinking), is_chat=True)


def shown(tokenizer: Tokenizer, token_ids: Sequence[int], *, with_special: bool) -> str:
    """The tokens' text as it is stored and sent.

    Postgres cannot hold a NUL, so it becomes the replacement character. Stored token ids keep it.
    """
    text = tokenizer.decode(list(token_ids), skip_special_tokens=not with_special)
    assert isinstance(text, str)
    return text.replace("\0", REPLACEMENT)


class SpokenText:
    """Text without special tokens, but with the marks of thoughts and tool calls.

    Some tokenizers count these marks among the special tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        marks = {f"<{slash}{name}>" for name in ("think", "tool_call") for slash in ("", "/")}
        words = {i: tokenizer.convert_ids_to_tokens(i) for i in special_ids(tokenizer)}
        self._anchor = tokenizer.encode("a", add_special_tokens=False)[-1:]
        self._left_out = frozenset(i for i, word in words.items() if word not in marks)

    def of(self, token_ids: Sequence[int]) -> str:
        kept = [i for i in token_ids if i not in self._left_out]
        return self._decode(kept)

    def further(self, token_ids: Sequence[int]) -> str:
        """Text of tokens that continue a text: leading white space is kept."""
        kept = [i for i in token_ids if i not in self._left_out]
        before = self._decode(self._anchor)
        return self._decode([*self._anchor, *kept])[len(before) :]

    def _decode(self, token_ids: list[int]) -> str:
        return shown(self._tokenizer, token_ids, with_special=True)


def decode(tokenizer: Tokenizer, token_ids: Sequence[int], stop: Sequence[str]) -> str:
    """The text without special tokens, cut before the first stop string."""
    return cut_at_stop(shown(tokenizer, token_ids, with_special=False), stop)
