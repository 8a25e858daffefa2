"""Masks of several grammars at once are llguidance's own bits."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from actograph.contract.errors import InvalidRequest
from worker.engine.tokens.grammar import Grammar, ruled_out

WIDTH = 270  # more than the tokenizer has, and no multiple of a word's bits


def _model() -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate([*alphabet, "<end>"])}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")
    return SimpleNamespace(
        tokenizer=tokenizer,
        text_config=SimpleNamespace(vocab_size=WIDTH),
        eos_token_ids=[tokenizer.eos_token_id],
    )


def test_each_row_is_its_grammar_s_own_at_its_place() -> None:
    model = _model()
    texts = ['start: "ab" | "ac"', "start: /[0-9]{2}/", 'start: "x"']
    grammars = [Grammar(model, text) for text in texts]
    first, second = model.tokenizer("a4", add_special_tokens=False)["input_ids"]
    grammars[0].take(first)
    grammars[1].take(second)
    masks = ruled_out(grammars, WIDTH, torch.device("cpu"))
    assert (masks.shape, masks.dtype) == ((3, WIDTH), torch.bool)
    allowed = [
        sorted(model.tokenizer.decode([i]) for i in row.logical_not().nonzero()[:, 0]) for row in masks
    ]
    assert allowed == [["b", "c"], list("0123456789"), ["x"]]
    for grammar, row in zip(grammars, masks, strict=True):
        bits = np.unpackbits(np.frombuffer(grammar._matcher.compute_bitmask(), np.uint8), bitorder="little")
        due = np.zeros(WIDTH, bool)
        due[: len(bits)] = bits[:WIDTH]
        assert torch.equal(row, torch.from_numpy(~due))
    grammars[2].take(model.tokenizer("x", add_special_tokens=False)["input_ids"][0])
    assert grammars[2].ended


def test_a_grammar_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="cannot be constrained"):
        Grammar(_model(), "start: nothing_like_this")
