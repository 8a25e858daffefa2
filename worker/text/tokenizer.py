"""Tokenizers in a process without torch: they cross as data, and transformers' own class is made of them.

The engine's process loads a checkpoint's tokenizer as transformers chooses its class, which may change what
`tokenizer.json` says. What the class has made of it crosses to the host. `transformers.AutoTokenizer` would
import torch there.
"""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from tokenizers import Tokenizer as Backend
from transformers.tokenization_utils_base import PreTrainedTokenizerBase
from transformers.tokenization_utils_tokenizers import TokenizersBackend

Tokenizer = PreTrainedTokenizerBase


def tokenizer_data(tokenizer: Tokenizer) -> dict[str, Any]:
    """A tokenizer as JSON.

    Raises:
        ValueError: it is not one of the `tokenizers` library.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(
            f"its tokenizer ({type(tokenizer).__name__}) is written in Python, and only those of the "
            "`tokenizers` library are served; convert it to a tokenizer.json"
        )
    return {
        "backend": backend.to_str(),
        "special_tokens": dict(tokenizer.special_tokens_map),
        "extra_special_tokens": list(tokenizer.extra_special_tokens),
        "chat_template": tokenizer.chat_template,
        "clean_up": bool(tokenizer.clean_up_tokenization_spaces),
        "sha256": tokenizer_sha256(tokenizer),
    }


def tokenizer_of(data: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of `tokenizer_data`.

    Raises:
        ValueError: it would give other ids.
    """
    backend, tokens = Backend.from_str(data["backend"]), dict(data["special_tokens"])
    usual = {name: tokens.pop(name) for name in TokenizersBackend.SPECIAL_TOKENS_ATTRIBUTES if name in tokens}
    kind: Any = TokenizersBackend
    made: TokenizersBackend = kind(
        tokenizer_object=backend,
        **usual,
        model_specific_special_tokens=tokens,
        extra_special_tokens=data["extra_special_tokens"],
        clean_up_tokenization_spaces=data["clean_up"],
    )
    made._tokenizer = backend  # as it was: the constructor may add to it
    made.chat_template = data["chat_template"]
    if tokenizer_sha256(made) != data["sha256"]:
        raise ValueError("the tokenizer does not cross to the host unchanged")
    return made


def decode_exactly(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of tokens, special ones included."""
    text = tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


def special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Ids of a tokenizer's special tokens, as its `decode(skip_special_tokens=True)` leaves them out.

    They are the added tokens with the flag `special`, in `tokenizer.json` or elsewhere, and those with a role
    (`eos_token`). A config names a part of them.
    """
    flagged = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(flagged.union(tokenizer.all_special_ids))


def tokenizer_sha256(tokenizer: Tokenizer) -> str:
    """sha256 (hex) of everything that decides the ids of a text, without the chat template.

    Padding and truncation are left out: they change with use, and never change a token.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        state = json.loads(backend.to_str())
        state.pop("padding", None)
        state.pop("truncation", None)
    else:
        state = {
            "class": type(tokenizer).__name__,
            "vocabulary": tokenizer.get_vocab(),
            "added": {str(i): str(token) for i, token in tokenizer.added_tokens_decoder.items()},
            "probe": tokenizer.encode("probe"),
        }
    state["special_tokens"] = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    text = json.dumps(state, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return sha256(text.encode(errors="surrogatepass")).hexdigest()
