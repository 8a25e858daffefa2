"""Generation that follows a grammar: tokens that would leave it cannot be chosen.

llguidance computes the allowed tokens of each step (https://github.com/guidance-ai/llguidance).
"""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from actograph.contract.errors import InvalidRequest
from worker.engine.model.loaded import LoadedModel

#: bits of a word of a mask
_BITS = 32
_tokenizers: WeakKeyDictionary[PreTrainedTokenizerBase, LLTokenizer] = WeakKeyDictionary()


def ruled_out(grammars: Sequence["Grammar"], width: int, device: torch.device) -> Tensor:
    """Tokens that cannot come next, bool [grammars, width], in one copy that a GPU is not waited for."""
    words = -(-width // _BITS)
    allowed = torch.zeros(len(grammars), words, dtype=torch.int32, pin_memory=device.type == "cuda")
    for grammar, row in zip(grammars, allowed, strict=True):
        grammar.allow(row)
    allowed = allowed.to(device, non_blocking=True)
    bits = allowed[..., None] >> torch.arange(_BITS, dtype=torch.int32, device=device)
    return bits.bitwise_and_(1).logical_not().view(len(grammars), -1)[:, :width]


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

    def allow(self, words: Tensor) -> None:
        """Set the bits of the tokens that can come next.

        Args:
            words: int32 [vocabulary / 32], on the CPU.
        """
        # as `llguidance.torch` does; importing that takes two seconds, since it compiles a kernel
        self._matcher.unsafe_compute_mask_ptr(words.data_ptr(), words.numel() * words.element_size())
        self._check()

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
