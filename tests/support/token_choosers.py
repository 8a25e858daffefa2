"""Choosers of tokens by number, apart from the ones under test."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EveryKth:
    """Tokens 0, k, 2k, ..."""

    stride: int

    def of_prompt(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        return range(0, len(prompt_ids), self.stride)

    def of_generation(self, prompt_ids: Sequence[int]) -> Callable[[int, int], bool]:
        return lambda row, token_id: row % self.stride == 0


@dataclass(frozen=True, slots=True)
class TheseTokens:
    """Tokens by number; a negative one counts from the end of the prompt."""

    tokens: tuple[int, ...]

    def of_prompt(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        prompt = len(prompt_ids)
        return sorted({t + prompt if t < 0 else t for t in self.tokens if -prompt <= t < prompt})

    def of_generation(self, prompt_ids: Sequence[int]) -> Callable[[int, int], bool]:
        wanted = frozenset(self.tokens)
        return lambda row, token_id: row in wanted
