"""Requests and rows in the engine's own form; `messages` has what the host sees."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch

from actograph.contract.interventions import Op
from actograph.contract.row_selection import NamedPositions, TokenRange
from worker.engine.messages import Reduce, StatisticsOptions, TextEnd

#: a summary of rows by the name of its part: [points, width or 1]
Summary = dict[str, torch.Tensor]


class RowChooser(Protocol):
    """Chooses tokens of one sample while it is generated: rows to keep, or rows to change."""

    def of_prompt(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        """Chosen tokens of the prompt, ascending."""
        ...

    def of_generation(self, prompt_ids: Sequence[int]) -> Callable[[int, int], bool]:
        """Function of (token number, token id): whether a generated token is chosen.

        The engine calls it once for every generated token that the model runs, in order.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Edit:
    """One intervention, ready for a model."""

    hook: str  # canonical name or module location
    op: Op
    coefficient: float = 1.0
    vector: torch.Tensor | None = None  # float32 [width], on the CPU
    positions: NamedPositions | TokenRange = "all"
    chooser: RowChooser | None = None  # instead of `positions`, for tokens that need not be consecutive

    @property
    def kind(self) -> tuple[object, ...]:
        """Key of edits that are made together; their choosers may differ."""
        vector = None if self.vector is None else id(self.vector)
        return (self.hook, self.op, self.coefficient, vector, self.positions, self.chooser is None)

    @property
    def changes_nothing(self) -> bool:
        """True if the edit has no effect; it is left out, so not even the sign of a zero changes."""
        if self.op in ("add", "project_out"):
            return self.coefficient == 0.0
        return self.op == "scale" and self.coefficient == 1.0


@dataclass(frozen=True, slots=True)
class SummedRows:
    """Summary of some rows of one hook of one sample, on the host."""

    count: int
    summaries: tuple[Summary, ...]  # of each summariser, of one point


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationRequest:
    """One prompt to continue."""

    key: str  # the caller's name for it, returned unchanged
    prompt_ids: tuple[int, ...]  # never empty
    seed: int  # all randomness of this sample
    edits: tuple[Edit, ...] = ()  # in the order in which they apply
    max_tokens: int | None = None  # most tokens to generate; None: the sampling's
    #: likeliest tokens to report with each token's log probability; None: no log probabilities
    top_logprobs: int | None = None
    score_prompt: bool = False  # log probabilities of the prompt's tokens too, with `top_logprobs` likeliest
    #: with `score_prompt`: a further token to score, which the model does not read
    scored_next: int | None = None
    stop_at: TextEnd | None = None  # beside the sampling's stop strings
    grammar: str | None = None  # of the generated text, in llguidance's form of Lark's
    chooser: RowChooser | None = None  # of rows to keep, instead of the shaping's
    earlier: "EarlierRows | None" = None  # summaries of earlier turns


@dataclass(slots=True, eq=False)
class EarlierRows:
    """Carries a sample's summaries from one turn to the next.

    Attributes:
        before: hook -> summary of earlier generations; empty before the first.
        after: the same including this generation, when it has ended.
    """

    before: Mapping[str, SummedRows] = field(default_factory=dict)
    after: dict[str, SummedRows] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RowChunk:
    """Rows of one hook: row `i` belongs to token `first_row + i`, or to `tokens[i]` where given.

    The pieces may be memory of the engine, which is valid until the sink's `write` returns.
    """

    first_row: int
    pieces: tuple[torch.Tensor, ...]  # [rows, width] each, in order, contiguous, on the CPU; one at least
    tokens: tuple[int, ...] | None = None  # ascending; None where the rows are consecutive
    over: int | None = None  # number of rows that this row summarises
    finite: bool = (
        False  # the device has found all numbers to be finite; False: it did not look, or some are not
    )

    @property
    def rows(self) -> int:
        return sum(len(piece) for piece in self.pieces)

    @property
    def tensor(self) -> torch.Tensor:
        """All rows, [rows, width], in new memory.

        Joined by numpy: in the delivery thread torch would start an OpenMP team of that thread's own, which
        slows the forward's down.
        """
        out = torch.empty(self.rows, self.pieces[0].shape[1], dtype=self.pieces[0].dtype)
        raw = [piece.view(torch.uint8).numpy() for piece in self.pieces]
        np.concatenate(raw, out=out.view(torch.uint8).numpy())
        return out

    def copied(self) -> "RowChunk":
        """The same in new memory."""
        return replace(self, pieces=(self.tensor,))


@dataclass(frozen=True, kw_only=True, slots=True)
class RowShaping:
    """Selection and reduction of captured rows; the default keeps them as they are."""

    chooser: RowChooser | None = None  # instead of `positions`, for rows that need not be consecutive

    columns: slice | tuple[int, ...] | None = None  # features to keep; None keeps all
    reduce: Reduce = "none"  # one row instead of all that were chosen
    statistics: StatisticsOptions | None = None

    @property
    def summarises(self) -> bool:
        return self.reduce != "none" or self.statistics is not None

    @property
    def keeps_rows(self) -> bool:
        """Whether rows are delivered as they were computed."""
        return self.reduce == "none" and (self.statistics is None or self.statistics.rows)
