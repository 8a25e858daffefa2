"""Spell token ids with a model's own tokenizer, in a process of its own.

    python -P api/reading/token_speller.py < input > output

A large tokenizer takes half a second and a hundred megabytes to load, with the interpreter's lock held. So
this file runs by itself: it imports nothing of Actograph.

Input: one line of JSON, `{"ids", "sha256"}`; then the zlib-compressed definition of the tokenizer, as the
worker stored it (`storage.queue.model_tokenizers`). `sha256` is the digest of the session's tokenizer, or
null.
Output: a JSON list with the text of each token, or null if the definition is of another tokenizer. A
character of several tokens is the text of the last one; the others are empty.
"""

import json
import sys
import zlib
from hashlib import sha256
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


def digest(definition: dict[str, Any]) -> str:
    """The digest of a tokenizer as a session's manifest has it."""
    state = json.loads(definition["tokenizer"])
    state.pop("padding", None)
    state.pop("truncation", None)
    state["special_tokens"] = {name: str(token) for name, token in definition["special_tokens"].items()}
    text = json.dumps(state, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return sha256(text.encode(errors="surrogatepass")).hexdigest()


def spell(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The text of each token, so that all of them in a row are the whole text."""
    stream, texts = DecodeStream(skip_special_tokens=False), []
    pending: list[int] = []
    for token_id in ids:
        try:
            text = stream.step(tokenizer, token_id) if tokenizer.id_to_token(token_id) is not None else ""
        except Exception:  # noqa: BLE001 (the library has no narrower error)
            stream, text = DecodeStream(skip_special_tokens=False), tokenizer.decode([token_id])
        texts.append(text or "")
        pending = [] if text else [*pending[-7:], token_id]
    if pending and ids:  # the text ends within a character
        texts[-1] = tokenizer.decode(pending, skip_special_tokens=False)
    return texts


def main() -> None:
    line, _, compressed = sys.stdin.buffer.read().partition(b"\n")
    wanted, definition = json.loads(line), json.loads(zlib.decompress(compressed))
    texts = None
    if wanted["sha256"] in (None, digest(definition)):
        texts = spell(Tokenizer.from_str(definition["tokenizer"]), wanted["ids"])
    sys.stdout.write(json.dumps(texts))


if __name__ == "__main__":
    main()
