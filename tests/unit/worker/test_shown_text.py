"""Texts of tokens as they are stored: whatever a model says, every database takes it."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from worker.runners import text
from worker.text.text_stream import TextStream

SAID = "Tom\0has 3\0"


@pytest.fixture(scope="module")
def tokenizer(shared: Path) -> PreTrainedTokenizerBase:
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(shared / "models" / "tiny-qwen3")
    return loaded


def test_a_nul_is_an_unreadable_character(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = tokenizer.encode(SAID, add_special_tokens=False)
    expected = "Tom\ufffdhas 3\ufffd"
    assert text.decode(tokenizer, ids, ()) == expected
    assert text.SpokenText(tokenizer).of(ids) == expected
    assert text.decode(tokenizer, ids, ("has",)) == "Tom\ufffd"


def test_a_stream_says_the_same_up_to_its_last_character(tokenizer: PreTrainedTokenizerBase) -> None:
    stream = TextStream(text.SpokenText(tokenizer).of, ())
    said = "".join(stream.feed([i]) for i in tokenizer.encode(SAID, add_special_tokens=False))
    assert said == "Tom\ufffdhas 3"
