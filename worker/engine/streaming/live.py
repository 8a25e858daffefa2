"""One request while it has a slot: its tokens, why it ends, what it captures."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from actograph.contract.errors import InterventionFailed
from worker.engine.requests import FinishReason, Generation, GenerationRequest, TextEnd, TokenLogprobs
from worker.engine.runs import RunPlan
from worker.engine.streaming.capture.buffers import HeldRows, RowBuffers
from worker.engine.streaming.capture.lane import Lane
from worker.engine.streaming.capture.record import RowRecord
from worker.engine.streaming.edits import RowEdits
from worker.engine.streaming.scores import PromptScore
from worker.engine.tokens.stopping import StopStrings, TextEnds


@dataclass(slots=True, eq=False)
class Live:
    """A request in a slot.

    Attributes:
        computed: tokens whose keys and values are in the slot.
        generated: ids, the one that ended it included; the newest one is not computed.
        waits_for: a request whose prefix this one copies when it is computed, and how many tokens.
        first_bad: generated token that was chosen from NaN, the first such.
        ended: it has left; the slot keeps its tokens until another request takes it.
        left: rows of its first tokens that it left for others, and their buffers.
    """

    request: GenerationRequest
    plan: RunPlan
    slot: int
    started: float
    edits: RowEdits
    generated: list[int]
    lane: Lane | None = None
    record: RowRecord | None = None
    score: PromptScore | None = None
    computed: int = 0
    waits_for: "tuple[Live, int] | None" = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    first_bad: int | None = None
    ended: bool = False
    left: tuple[RowBuffers, HeldRows] | None = None

    @property
    def prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_ids)

    @property
    def limit(self) -> int:
        """Most tokens to generate."""
        return self.request.max_tokens or self.plan.sampling.max_tokens

    @property
    def decodes(self) -> bool:
        """Whether the prompt is computed, so that each step runs one token."""
        return self.computed >= self.prompt

    @property
    def computed_ids(self) -> Sequence[int]:
        """Tokens that are in the slot, or will be soon: the prompt, and generated tokens that were run."""
        return self.request.prompt_ids + tuple(self.generated[: max(0, self.computed - self.prompt)])

    def held(self, buffers: RowBuffers) -> HeldRows | None:
        """Rows of its first tokens that are held in these buffers."""
        if self.record is not None:
            return self.record.held if self.record.buffers is buffers else None
        return self.left[1] if self.left is not None and self.left[0] is buffers else None

    def leave(self) -> None:
        """Let go of everything but what others may take over."""
        if self.record is not None and self.record.held is not None:
            self.left = (self.record.buffers, self.record.held)
        self.ended, self.record, self.lane, self.waits_for = True, None, None, None

    def generation(self, reason: FinishReason) -> Generation:
        """The result."""
        error: BaseException | None = None
        if self.first_bad is not None:
            error = InterventionFailed(
                "the interventions drove the model to values that are not numbers (NaN) when it chose "
                f"generated token {self.first_bad}; take a smaller coefficient or vector"
            )
        scores, failed = self.score.result() if self.score is not None else (None, None)
        return Generation(
            key=self.request.key,
            prompt_ids=self.request.prompt_ids,
            generated_ids=tuple(self.generated),
            finish_reason=reason,
            error=error or failed,
            logprobs=None if self.request.top_logprobs is None else tuple(self.logprobs),
            prompt_logprobs=scores,
        )


class Endings:
    """Decides after each token whether a request has ended.

    Args:
        clock: seconds.
    """

    def __init__(
        self, eos_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase, clock: Callable[[], float]
    ) -> None:
        self._eos = frozenset(eos_ids)
        self._tokenizer = tokenizer
        self._clock = clock
        self._stops: dict[tuple[str, ...], StopStrings] = {}
        self._ends: dict[TextEnd, TextEnds] = {}

    def reason(self, live: Live, should_drop: Callable[[str], bool]) -> FinishReason | None:
        """Why a request ended with its newest token; None if it goes on."""
        if live.generated[-1] in self._eos or self._says_stop(live):
            return "stop"
        if len(live.generated) >= live.limit:
            return "length"
        limit = math.inf if live.plan.time_limit is None else live.plan.time_limit
        if self._clock() - live.started > limit:
            return "timeout"
        return "dropped" if should_drop(live.request.key) else None

    def _says_stop(self, live: Live) -> bool:
        stops = tuple(live.plan.sampling.stop)
        if stops:
            if stops not in self._stops:
                self._stops[stops] = StopStrings(stops, self._tokenizer)
            if self._stops[stops].ended(live.generated):
                return True
        end = live.request.stop_at
        if end is None:
            return False
        if end not in self._ends:
            self._ends[end] = TextEnds(end, self._tokenizer)
        return self._ends[end].ended(live.generated)
