"""Generation that follows a grammar: tokens that would leave it cannot be chosen.

llguidance computes the allowed tokens of each step (https://github.com/guidance-ai/llguidance).
"""

from weakref import WeakKeyDictionary

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from actograph.contract.errors import InvalidRequest
from worker.engine.model.loaded import LoadedModel

_tokenizers: WeakKeyDictionary[PreTrainedTokenizerBase, LLTokenizer] = WeakKeyDictionary()


class Grammar:
    """The place of one generated text in its grammar.

    Args:
        text: the grammar, in llguidance's form of Lark's.

    Raises:
        InvalidRequest: the grammar cannot be used, or not with this model's tokenizer.
    """

    def __init__(self, model: LoadedModel, text: str) -> None:
        tokenizer = model.tokenizer
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise InvalidRequest("the model's tokenizer is not a fast one, so its text cannot be constrained")
        if tokenizer not in _tokenizers:
            width, ends = int(model.text_config.vocab_size), sorted(model.eos_token_ids)
            _tokenizers[tokenizer] = from_tokenizer(tokenizer, n_vocab=width, eos_token=ends or None)
        self._matcher = LLMatcher(_tokenizers[tokenizer], text, log_level=0)
        self._check()

    def ruled_out(self, width: int) -> Tensor:
        """Tokens that cannot come next, bool [width], on the CPU."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed = np.unpackbits(bits, bitorder="little")[:width].astype(bool)
        return torch.from_numpy(~np.pad(allowed, (0, width - len(allowed))))

    def take(self, token: int) -> None:
        """Go on by a chosen token."""
        self._matcher.consume_token(token)
        self._check()

    @property
    def ended(self) -> bool:
        """Whether the text is complete, and nothing can follow."""
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InvalidRequest(f"the text cannot be constrained: {self._matcher.get_error()}")
