"""Tokens whose rows are kept or changed, and columns and dtype of kept rows."""

from collections.abc import Sequence

import torch

from actograph.contract.errors import CaptureFailed
from actograph.contract.row_selection import Positions, Selection, TokenRange
from worker.engine.requests import RowChooser


class _FollowedChoice:
    """Answers of a chooser for one request, however often they are asked for."""

    def __init__(self, chooser: RowChooser, prompt_ids: Sequence[int], generated: Sequence[int]) -> None:
        self.in_prompt = tuple(chooser.of_prompt(prompt_ids))
        self._prompt = len(prompt_ids)
        self._generated = generated
        self._judge = chooser.of_generation(prompt_ids)
        self._answers: list[bool] = []

    def holds(self, number: int) -> bool:
        """Whether generated token `number` (the first is 0) is chosen; False if it does not exist yet."""
        for place in range(len(self._answers), min(number + 1, len(self._generated))):
            self._answers.append(self._judge(self._prompt + place, self._generated[place]))
        return number < len(self._answers) and self._answers[number]


class ChosenTokens:
    """Selection of one request's tokens: rows to keep, or rows to change.

    Args:
        chooser: decides instead of `positions`.
        generated: live view of the request's generated ids.
    """

    def __init__(
        self,
        positions: Positions,
        chooser: RowChooser | None,
        prompt_ids: Sequence[int],
        generated: Sequence[int],
    ) -> None:
        self._prompt = len(prompt_ids)
        self._selection = Selection.of(positions, self._prompt)
        self._choice = None if chooser is None else _FollowedChoice(chooser, prompt_ids, generated)
        #: of rows to keep, only the newest one counts
        self.newest_only = self._choice is None and self._selection.last_only
        #: rows need not be consecutive
        self.scattered = self._choice is not None or not isinstance(positions, str | TokenRange)

    def of(self, start: int, stop: int) -> Sequence[int]:
        """Chosen tokens among `start` to `stop - 1`, whose ids exist; the same answer however often."""
        prompt, selection = self._prompt, self._selection
        if self._choice is not None:
            early = [token for token in self._choice.in_prompt if start <= token < stop]
            return early + [t for t in range(max(start, prompt), stop) if self._choice.holds(t - prompt)]
        if selection.last_only:
            return range(max(start, prompt - 1), stop)
        if selection.segments is None or selection.window is not None:
            return selection.rows(start, prompt, stop)
        return [t for t in range(start, stop) if selection.holds(t, "prompt" if t < prompt else "answer")]


class Columns:
    """A choice of features.

    Args:
        chosen: a slice from 0, column numbers in the order in which they are stored, or None for all.
    """

    def __init__(self, chosen: slice | tuple[int, ...] | None) -> None:
        self._chosen = chosen
        self.all = chosen is None
        self._on_device: dict[torch.device, torch.Tensor] = {}

    def width(self, width: int, hook: str) -> int:
        """Number of columns kept of `width`.

        Raises:
            CaptureFailed: the hook has too few columns.
        """
        if self._chosen is None:
            return width
        if isinstance(self._chosen, slice):
            needed = kept = self._chosen.stop
        else:
            needed, kept = max(self._chosen) + 1, len(self._chosen)
        if needed > width:
            raise CaptureFailed(
                f"{hook} has {width} features (0 to {width - 1}); feature {needed - 1} was asked for"
            )
        return int(kept)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The kept columns of [..., width]: a view of a slice, a copy of chosen columns."""
        if self._chosen is None:
            return tensor
        if isinstance(self._chosen, slice):
            return tensor[..., self._chosen]
        index = self._on_device.get(tensor.device)
        if index is None:
            index = index_on(self._chosen, tensor.device)
            self._on_device[tensor.device] = index
        return tensor.index_select(-1, index)


def index_on(numbers: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """An index of int64 on a device, for which the host does not wait."""
    index = torch.tensor(numbers, dtype=torch.int64)
    if device.type != "cuda":
        return index.to(device)
    pinned = torch.empty(index.shape, dtype=torch.int64, pin_memory=True)
    return pinned.copy_(index).to(device, non_blocking=True)


def stored_dtype(source: torch.dtype, asked: torch.dtype | None) -> torch.dtype:
    """Dtype in which rows are stored; integers (expert indices) stay integers."""
    return asked if asked is not None and source.is_floating_point else source
