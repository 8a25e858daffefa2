"""Rows and columns to keep, gathered on the device before anything is copied.

Chosen rows are counted per sample: its first chosen row is number 0, whatever its token. The row path
counts in these numbers, and `ChosenRows.tokens` maps them to tokens.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from actograph.contract.errors import CaptureFailed
from worker.engine.requests import RowChooser


@dataclass(frozen=True, slots=True)
class Gathered:
    """Chosen rows of the whole batch, [batch, rows, width]: sample b has `tensor[b, starts[b]:]`."""

    tensor: torch.Tensor
    starts: tuple[int, ...]
    first_rows: tuple[int, ...]  # number of the row at starts[b]


class ChosenRows:
    """Rows chosen in one batch.

    Args:
        choosers, prompt_ids: of each sample.
        generated: live view of each sample's generated ids.

    Attributes:
        tokens: tokens of the chosen rows so far, per sample; the lists only grow.
    """

    def __init__(
        self,
        choosers: Sequence[RowChooser],
        prompt_ids: Sequence[Sequence[int]],
        generated: Sequence[Sequence[int]],
    ) -> None:
        self._prompts = [len(ids) for ids in prompt_ids]
        self._generated = generated
        self._judges = [c.of_generation(ids) for c, ids in zip(choosers, prompt_ids, strict=True)]
        self.tokens: list[list[int]] = [
            list(c.of_prompt(ids)) for c, ids in zip(choosers, prompt_ids, strict=True)
        ]
        self.in_prompt = tuple(len(tokens) for tokens in self.tokens)
        self._indices: dict[
            tuple[int, int, torch.device], tuple[torch.Tensor, tuple[int, ...], tuple[int, ...]]
        ] = {}

    def of_prompt(self, tensor: torch.Tensor, after: int = 0) -> Gathered:
        """Chosen rows among the prompt rows in `tensor` [batch, tokens, width].

        Its tokens are the last of the prompts, or those before the last `after` of them.
        """
        count = tensor.shape[1]
        key = (count, after, tensor.device)
        if key not in self._indices:
            held = [range(prompt - after - count, prompt - after) for prompt in self._prompts]
            chosen = [tokens[:n] for tokens, n in zip(self.tokens, self.in_prompt, strict=True)]
            places = [[row - h.start for row in t if row in h] for t, h in zip(chosen, held, strict=True)]
            most = max(len(p) for p in places)
            starts = tuple(most - len(p) for p in places)
            index = torch.tensor([[0] * (most - len(p)) + p for p in places], dtype=torch.long)
            firsts = tuple(bisect_left(t, h.start) for t, h in zip(chosen, held, strict=True))
            self._indices[key] = (index.to(tensor.device), starts, firsts)
        index, starts, firsts = self._indices[key]
        sample = torch.arange(tensor.shape[0], device=tensor.device)
        return Gathered(tensor[sample[:, None], index], starts, firsts)

    def judge(self, step: int, ended_at: Sequence[int | None]) -> tuple[bool, ...]:
        """Whether each sample keeps its row of decode step `step`; call once per step, in order."""
        kept = []
        for sample, end in enumerate(ended_at):
            row = self._prompts[sample] + step
            runs = end is None or step < end - 1
            keep = runs and self._judges[sample](row, self._generated[sample][step])
            if keep:
                self.tokens[sample].append(row)
            kept.append(keep)
        return tuple(kept)

    def due(self, sample: int, *, tail_only: bool) -> int:
        """Number of rows expected for a point; a tail-only point begins at the last prompt token."""
        if not tail_only:
            return len(self.tokens[sample])
        return sum(row >= self._prompts[sample] - 1 for row in self.tokens[sample])


def gather_steps(block: torch.Tensor, kept: Sequence[Sequence[bool]]) -> torch.Tensor:
    """[steps, batch, points, width] without the steps that a sample does not keep.

    Returns: [most, batch, points, width], `most` being the steps of the sample that keeps most; the
    rows of a sample that keeps fewer come first, and meaningless rows follow.
    """
    batch = block.shape[1]
    per_sample = [[step for step, keeps in enumerate(kept) if keeps[b]] for b in range(batch)]
    most = max(len(steps) for steps in per_sample)
    if all(len(steps) == len(kept) for steps in per_sample):
        return block
    index = torch.tensor([steps + [0] * (most - len(steps)) for steps in per_sample], device=block.device)
    return block[index.T, torch.arange(batch, device=block.device)]


class Columns:
    """A choice of features.

    Args:
        chosen: a slice from 0, column numbers in the order in which they are stored, or None for all.
    """

    def __init__(self, chosen: slice | tuple[int, ...] | None) -> None:
        self._chosen = chosen
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
            index = torch.tensor(self._chosen, device=tensor.device)
            self._on_device[tensor.device] = index
        return tensor.index_select(-1, index)
