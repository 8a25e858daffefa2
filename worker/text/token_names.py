"""Names of tokens in answers with log probabilities."""

import json
import re
from collections.abc import Mapping
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

from worker.text.text_stream import REPLACEMENT
from worker.text.tokenizer import Tokenizer, decode_exactly

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class TokenNames:
    """Names a tokenizer's tokens: their text in the middle of other text, and their bytes.

    A token that is a part of a character has no text. As in OpenAI's API its name is its bytes,
    `bytes:\\xe2\\x80`, so two tokens of a character have different names.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # decoders drop white space before the first token of a text
        anchor = tokenizer.encode("a", add_special_tokens=False)[-1:]
        text = self._decode(anchor)
        self._anchor = anchor if text and self._decode(anchor * 2).startswith(text) else []
        self._before = len(self._decode(self._anchor))
        spelling: Any = bytes_to_unicode
        self._bytes = {word: byte for byte, word in spelling().items()}
        self._spells_bytes = _is_byte_level(tokenizer)
        self._known: dict[int, tuple[str, list[int] | None]] = {}

    def of(self, token_id: int) -> tuple[str, list[int] | None]:
        """Name and bytes of a token; the bytes are None if the tokenizer does not give them."""
        found = self._known.get(token_id)
        if found is None:
            found = self._known[token_id] = self._find(token_id)
        return found

    def _find(self, token_id: int) -> tuple[str, list[int] | None]:
        text = self._decode([*self._anchor, token_id])[self._before :]
        if REPLACEMENT not in text:
            return text, list(text.encode(errors="replace"))
        word = str(self._tokenizer.convert_ids_to_tokens(token_id))
        single = _BYTE.fullmatch(word)
        if single is not None:
            spelled = [int(single[1], 16)]
        elif self._spells_bytes and all(letter in self._bytes for letter in word):
            spelled = [self._bytes[letter] for letter in word]
        else:
            return text, None
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled), spelled

    def _decode(self, ids: list[int]) -> str:
        return decode_exactly(self._tokenizer, ids)


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer's words are bytes, each shown as a letter (GPT-2's way)."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return False
    decoder: Mapping[str, Any] = json.loads(backend.to_str()).get("decoder") or {}
    return any(part.get("type") == "ByteLevel" for part in (decoder, *decoder.get("decoders", ())))
