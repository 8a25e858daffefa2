"""Texts of tokens: together they are the text, whatever characters are split."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from api.reading.token_speller import digest, spell
from api.reading.token_texts import _spell
from worker.text import chat_template

pytestmark = pytest.mark.integration

TEXT = "Hello <b>world</b>\n 12+3 = 15 \U0001f600 \u05e9\u05dc\u05d5\u05dd \U00020000 na\u00efve"


@pytest.fixture(scope="module", params=["tiny-qwen3", "stories260k"])
def tokenizer(request: pytest.FixtureRequest, shared: Path) -> Any:
    return AutoTokenizer.from_pretrained(shared / "models" / request.param)


def test_texts_together_are_the_text(tokenizer: Any) -> None:
    backend: Tokenizer = tokenizer.backend_tokenizer
    ids = backend.encode(TEXT, add_special_tokens=False).ids
    texts = spell(backend, ids)
    assert len(texts) == len(ids)
    assert "".join(texts).strip() == backend.decode(ids, skip_special_tokens=False).strip()


def test_ids_of_no_token_and_broken_characters_have_a_place(tokenizer: Any) -> None:
    backend: Tokenizer = tokenizer.backend_tokenizer
    ids = backend.encode("\U0001f600a", add_special_tokens=False).ids
    broken = [10**6, *ids[:-2], *ids[-1:] * 3, 10**6]
    texts = spell(backend, broken)
    assert len(texts) == len(broken)
    assert texts[0] == texts[-1] == ""


def test_a_session_of_another_tokenizer_gets_no_texts(tokenizer: Any) -> None:
    definition = chat_template.exported(tokenizer)
    assert definition is not None
    assert digest(definition) == chat_template.tokenizer_sha256(tokenizer)
    compressed = zlib.compress(json.dumps(definition).encode())
    for known, expected in ((digest(definition), list), (None, list), ("0" * 64, type(None))):
        wanted = json.dumps({"ids": [5, 6], "sha256": known}).encode()
        assert isinstance(json.loads(_spell(wanted + b"\n" + compressed)), expected)
