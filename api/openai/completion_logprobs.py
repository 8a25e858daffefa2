"""Log probabilities of a text's tokens in the form of OpenAI's older completions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from actograph.contract.chat.chat_answers import CompletionLogprobs, TextToken


def completion_logprobs(text: str, stored: Sequence[Mapping[str, Any]]) -> CompletionLogprobs:
    """`stored` are the tokens of the text as their sample keeps them, see `TextToken`."""
    tokens = [TextToken.model_validate(token) for token in stored]
    return CompletionLogprobs(
        tokens=[token.token for token in tokens],
        token_logprobs=[token.logprob for token in tokens],
        top_logprobs=[token.top for token in tokens],
        text_offset=list(_offsets(text, tokens)),
    )


def _offsets(text: str, tokens: Sequence[TextToken]) -> Iterator[int]:
    """Where each token begins in the text.

    A token of which the text shows nothing (an end token, one that a stop string cut off) begins where the
    next one does, and so do those that make up one character, but for the last.
    """
    at = 0
    partial = b""
    for token in tokens:
        yield at
        shown = token.token
        if token.token.startswith("bytes:"):
            partial += bytes(token.bytes or b"")
            try:
                shown = partial.decode()
            except UnicodeDecodeError:
                continue
        partial = b""
        # tokenizers put white space before the first word, and decoders take it away
        for form in (shown, shown.removeprefix(" ")):
            if text.startswith(form, at):
                at += len(form)
                break
