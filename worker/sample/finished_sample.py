"""The expected content of a finished sample's session."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from actograph.contract.errors import CaptureFailed
from actograph.contract.row_selection import Positions, Selection
from storage.sessions.manifest import Segment, Turn
from worker.engine.requests import FinishReason, Generation
from worker.sample.conversation import Conversation
from worker.sample.segments import Markup, segments


@dataclass(frozen=True, kw_only=True)
class FinishedSample:
    """The tokens of one sample, and which of their rows are due."""

    token_ids: tuple[int, ...]
    prompt_tokens: int
    #: tokens that the model ran
    rows: int
    turns: Sequence[Turn]
    segments: Sequence[Segment]
    finish_reason: FinishReason
    #: hook -> tokens of its rows: a range where they are consecutive by definition; raises CaptureFailed
    due: Callable[[str], range | list[int]]

    @property
    def generated_tokens(self) -> int:
        """Tokens after the first prompt."""
        return len(self.token_ids) - self.prompt_tokens

    @property
    def manifest_reason(self) -> Literal["stop", "length"] | None:
        reason = self.finish_reason
        return reason if reason in ("stop", "length") else None


@dataclass(frozen=True)
class RowsWanted:
    """Stored positions of a job, and the hooks with rows from a prompt's last token on."""

    positions: Positions
    tail_only: Collection[str]


def of_generation(generation: Generation, wanted: RowsWanted, markup: Markup) -> FinishedSample:
    """A sample of one turn, or of a text that was only read."""
    prompt, generated = len(generation.prompt_ids), len(generation.generated_ids)
    named = segments(markup, generation.prompt_ids, generation.generated_ids)

    def due(hook: str) -> range | list[int]:
        return due_tokens(hook, wanted.positions, prompt, generated, named, tail_only=wanted.tail_only)

    turn = Turn(role="assistant", start=0, stop=prompt + generated, prompt_tokens=prompt)
    return FinishedSample(
        token_ids=(*generation.prompt_ids, *generation.generated_ids),
        prompt_tokens=prompt,
        rows=prompt + max(0, generated - 1),
        turns=[turn] if generated else [],
        segments=named,
        finish_reason=generation.finish_reason,
        due=due,
    )


def of_conversation(conversation: Conversation, wanted: RowsWanted) -> FinishedSample:
    """A sample of several turns."""
    return FinishedSample(
        token_ids=tuple(conversation.token_ids),
        prompt_tokens=conversation.prompt_tokens,
        rows=conversation.rows,
        turns=conversation.turns,
        segments=conversation.segments,
        finish_reason=conversation.generations[-1].finish_reason,
        due=lambda hook: conversation.due_tokens(wanted.positions, tail_only=hook in wanted.tail_only),
    )


def due_tokens(
    hook: str,
    positions: Positions,
    prompt: int,
    generated: int,
    segments: Collection[Segment] = (),
    *,
    tail_only: Collection[str] = ("logits",),
) -> range | list[int]:
    """Tokens whose rows a hook must have, for a sample of one turn; `generated` is 0 in prefill.

    Returns a range if the rows are consecutive by definition, else a list.

    Args:
        tail_only: hooks that have rows from the last prompt token on, see `estimate.is_tail_only`.

    Raises:
        CaptureFailed: `positions` lists a token that the sample does not have.
    """
    begins = prompt - 1 if hook in tail_only and generated else 0
    first, stop = begins, prompt + max(0, generated - 1)
    selection = Selection.of(positions, prompt)
    if selection.segments is not None and positions not in ("prompt", "generated"):
        runs = [run for run in segments if run.name in selection.segments]
        return [token for run in runs for token in range(max(first, run.start), min(run.stop, stop))]
    for number in positions if isinstance(positions, list) else ():
        if isinstance(number, int) and not -prompt <= number < stop:
            raise CaptureFailed(
                f"positions lists token {number}, which this sample does not have: its prompt has "
                f"{prompt} tokens and the model ran {stop} (0 to {stop - 1})"
            )
    rows = selection.rows(first, prompt, stop)
    return rows if isinstance(rows, range) and isinstance(positions, str) else list(rows)
