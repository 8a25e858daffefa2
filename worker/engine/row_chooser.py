"""How the engine is told which tokens of a sample are meant, for rows to keep and rows to change."""

from collections.abc import Callable, Sequence
from typing import Protocol


class RowChooser(Protocol):
    """Chooses tokens, knowing only what came before each of them."""

    def of_prompt(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        """Tokens of the prompt that are meant, ascending."""
        ...

    def of_generation(self, prompt_ids: Sequence[int]) -> Callable[[int, int], bool]:
        """A judge for one sample: whether token number `row` is meant, whose id is `token_id`.

        It is asked once for every generated token that is run, in their order.
        """
        ...


class FollowedChoice:
    """A chooser's answers for one sample, however often they are asked for.

    Args:
        generated: live view of the ids that the sample has generated.
    """

    def __init__(self, chooser: RowChooser, prompt_ids: Sequence[int], generated: Sequence[int]) -> None:
        self.in_prompt = tuple(chooser.of_prompt(prompt_ids))
        self._prompt = len(prompt_ids)
        self._generated = generated
        self._judge = chooser.of_generation(prompt_ids)
        self._answers: list[bool] = []

    def holds(self, number: int) -> bool:
        """Whether generated token `number` (the first is 0) is meant; False of one that is not there."""
        for place in range(len(self._answers), min(number + 1, len(self._generated))):
            self._answers.append(self._judge(self._prompt + place, self._generated[place]))
        return number < len(self._answers) and self._answers[number]
