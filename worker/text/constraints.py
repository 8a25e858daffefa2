"""Constraints of answers: which tokens a grammar allows next."""

from collections.abc import Sequence
from functools import lru_cache

import llguidance
import numpy as np
import torch
from llguidance.hf import from_tokenizer
from transformers import PreTrainedTokenizerBase

from actograph.contract.errors import ActographError, InvalidRequest
from actograph.contract.resources import ModelStructure

#: a tokenizer takes about a second for a large vocabulary; a worker has one model
_TOKENIZERS = 1
#: bounds the time of compilation
MAX_GRAMMAR_CHARS = 256_000


class GrammarConstraint:
    """Tokens that a grammar allows, for one sample.

    Attributes:
        failure: the reason if the grammar cannot be followed any more. Then only end tokens are allowed.
    """

    def __init__(self, matcher: llguidance.LLMatcher, end_ids: Sequence[int], vocabulary: int) -> None:
        self.failure: ActographError | None = None
        self._matcher = matcher
        self._ends = torch.zeros(vocabulary, dtype=torch.bool)
        self._ends[list(end_ids)] = True
        self._consumed = 0

    def mask(self, generated: Sequence[int]) -> torch.Tensor:
        """Allowed tokens after `generated`, bool [vocabulary], on the CPU."""
        if len(generated) < self._consumed:  # the sample runs again
            self._matcher.reset()
            self._consumed = 0
        if self.failure is None:
            self._matcher.consume_tokens(list(generated[self._consumed :]))
            self._consumed = len(generated)
            bits = self._matcher.compute_bitmask() if not self._matcher.is_error() else b""
            if self._matcher.is_error():
                lines = self._matcher.get_error().splitlines()
                self.failure = InvalidRequest(f"the answer cannot follow the schema: {lines[0]}")
            else:
                allowed = np.unpackbits(np.frombuffer(bits, dtype=np.uint8), bitorder="little")
                return torch.from_numpy(allowed[: len(self._ends)]).bool()
        return self._ends


class GrammarCompiler:
    """Makes constraints from grammars, for one tokenizer.

    Args:
        structure: the model's; it has the end tokens and the number of logits.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, structure: ModelStructure) -> None:
        self._tokenizer = tokenizer
        self._ends = tuple(structure.eos_token_ids)
        self._vocabulary = max(structure.vocab_size, len(tokenizer))

    def marker_id(self, marker: str) -> int | None:
        """Token id of a marker that the tokenizer counts among its special tokens; None for any other."""
        found = self._tokenizer.convert_tokens_to_ids(marker)
        if not isinstance(found, int) or found == self._tokenizer.unk_token_id:
            return None
        return found if self._library().is_special_token(found) else None

    def compile(self, grammar: str, *, param: str) -> GrammarConstraint:
        """A fresh constraint.

        Raises:
            InvalidRequest: a schema of the grammar is invalid or not supported, or the model has no end
                token or no fast tokenizer; `param` is the request's field.
        """
        if len(grammar) > MAX_GRAMMAR_CHARS:
            raise InvalidRequest(
                f"the schemas in {param} have {len(grammar)} characters; at most {MAX_GRAMMAR_CHARS}",
                param=param,
            )
        try:
            matcher = llguidance.LLMatcher(
                self._library(), llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0
            )
        except ValueError as error:
            raise InvalidRequest(f"{param} cannot constrain this model: {error}", param=param) from error
        if matcher.is_error():
            reason = matcher.get_error().splitlines()[0]
            raise InvalidRequest(f"the schema in {param} is not supported: {reason}", param=param)
        return GrammarConstraint(matcher, self._ends, self._vocabulary)

    def _library(self) -> llguidance.LLTokenizer:
        if not self._ends:
            raise ValueError("it has no end token")
        return _library_tokenizer(self._tokenizer, self._vocabulary, self._ends)


@lru_cache(maxsize=_TOKENIZERS)
def _library_tokenizer(
    tokenizer: PreTrainedTokenizerBase, vocabulary: int, ends: tuple[int, ...]
) -> llguidance.LLTokenizer:
    return from_tokenizer(tokenizer, n_vocab=vocabulary, eos_token=list(ends))  # type: ignore[arg-type]
