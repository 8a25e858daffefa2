"""A request's state while it runs, from its first pass to its last.

What is asked is the `Request`, which never changes. A slot is what has become of it: its tokens, its place
among the keys and values, its rows, and what the next pass runs of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from worker.engine.capture.points import Points
from worker.engine.capture.record import Record
from worker.engine.edit_tables import EditRows
from worker.engine.edits import SlotEdits, Write
from worker.engine.messages import FinishReason, Generation, Request, TokenLogprobs
from worker.engine.prompt_values import PromptValue
from worker.engine.tokens.prompt_scores import NextScore, PromptScore
from worker.engine.tokens.sampler import SamplerEntry
from worker.engine.variants import SlotVariants

if TYPE_CHECKING:
    from torch import Tensor

    from worker.engine.tokens.grammar import Grammar


@dataclass(slots=True, eq=False)
class Slot:
    """A running request.

    Attributes:
        started: moment at which it got its slot.
        prefix: it reads a shared prefix and has no result of its own.
        tokens: prompt and answer; the newest token of an answer is not computed.
        generated: ids of the answer, the one that ended it included.
        withheld: the token that was chosen after a readout had ended the answer; it is never read.
        computed: tokens that passes have run, whose keys and values are kept.
        chosen: tokens of the answer that passes have chosen; the host has not read the last one yet if
            `generated` is shorter.
        cached: first tokens of the prompt that another slot had computed.
        cache: of the forward: a range of the arena, or a cache of its own.
        record: takes the rows.
        points: where its rows are copied.
        edits: None until it has its place in the forward.
        edit_rows: the same in the tables that graphs read; None if they are not there.
        score: log probabilities of the prompt.
        next_score: log probabilities of tokens that may follow it.
        value: of a readout at a token of the prompt.
        variants: in which the prompt is read again; None if it has none.
        sampler: its entry in the sampler's tables; None before its start and after its end.
        grammar: where the generated text is in the grammar that it follows.
        processors: transformers' own, of the checkpoint's generation config.
        ids: all ids on the device, [1, most + 1]; only for `processors`.
        stop: the next pass runs the tokens `computed` to `stop - 1`.
        first: place of the first of these in the pass.
        logits: of how many of the last of these the logits are computed.
        rows: numbers of those whose rows are captured.
        writes: edits of these.
        ended: it has its result, or a prefix is read.
    """

    request: Request
    started: float = 0.0
    prefix: bool = False
    tokens: list[int] = field(init=False)
    generated: list[int] = field(default_factory=list)
    withheld: int | None = None
    computed: int = 0
    chosen: int = 0
    cached: int = 0
    cache: Any = None
    record: Record | None = None
    points: Points | None = None
    edits: SlotEdits | None = None
    edit_rows: EditRows | None = None
    score: PromptScore | None = None
    next_score: NextScore | None = None
    value: PromptValue | None = None
    variants: SlotVariants | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    sampler: SamplerEntry | None = None
    grammar: Grammar | None = None
    processors: Sequence[Any] = ()
    ids: Tensor | None = None
    stop: int = 0
    first: int = 0
    logits: int = 0
    rows: Sequence[int] = ()
    writes: Sequence[Write] = ()
    ended: bool = False

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt_ids)
        if self.request.score_prompt:
            self.score = PromptScore(self.request)
        if self.request.next_tokens:
            self.next_score = NextScore(self.request)

    @property
    def key(self) -> str:
        return self.request.key

    @property
    def priority(self) -> bool:
        return self.request.priority

    @property
    def prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_ids)

    @property
    def most(self) -> int:
        """Tokens that the model runs at most."""
        return self.request.most_run

    @property
    def reads(self) -> bool:
        """Whether the prompt is only read."""
        return not self.request.most_generated

    @property
    def prefills(self) -> bool:
        return self.computed < self.prompt

    @property
    def varies(self) -> bool:
        """Whether the prompt is read, and variants of it are not."""
        return not self.prefills and self.variants is not None and bool(self.variants.left)

    @property
    def is_unread(self) -> bool:
        """Whether the host has not read the newest token."""
        return self.chosen > len(self.generated)

    @property
    def waits(self) -> bool:
        """Whether the host must read the newest token before it plans the next pass.

        A token that ends the request, by its id or its text, is no reason: what the next pass has then run of
        the request is left out.
        """
        request, record = self.request, self.record
        return (
            self.grammar is not None
            or bool(self.processors)
            or (record is not None and (record.kept.scattered or record.kept.newest_only))
            or any(edit.rule is not None for edit in request.edits)
            or request.values_at_once
        )

    @property
    def generated_ids(self) -> tuple[int, ...]:
        """All ids that were chosen."""
        return (*self.generated, *(() if self.withheld is None else (self.withheld,)))

    # the next pass

    @property
    def goes_on(self) -> bool:
        """Whether there is a token to run."""
        return self.prefills or self.varies or (not self.reads and self.chosen < self.request.most_generated)

    @property
    def count(self) -> int:
        """Tokens of the next pass."""
        return self.stop - self.computed

    @property
    def chooses(self) -> bool:
        """Whether a token is chosen after the next pass."""
        return self.stop >= self.prompt and not self.reads

    @property
    def needs_all_logits(self) -> bool:
        """Whether the logits of all tokens of the prompt are needed."""
        tail = self.record is not None and self.record.has_tail and self.reads
        return not self.prefix and (self.score is not None or tail)

    def run_to(self, stop: int) -> None:
        """Let the next pass run the tokens up to `stop - 1`, with their edits."""
        self.stop = stop
        read = self.value is not None and self.value.token == self.prompt - 1  # perhaps of the head
        scores = (self.next_score is not None or read) and stop == self.prompt
        self.logits = self.count if self.prefills and self.needs_all_logits else int(self.chooses or scores)
        self.writes = () if self.edits is None else self.edits.writes(self.computed, stop)

    def take(self, token: int, logprobs: TokenLogprobs | None) -> None:
        """Add a chosen token."""
        if self.ids is not None:
            self.ids[0, len(self.tokens)].fill_(token)
        if self.grammar is not None:
            self.grammar.take(token)
        self.tokens.append(token)
        self.generated.append(token)
        if logprobs is not None:
            self.logprobs.append(logprobs)

    def withhold(self, token: int, logprobs: TokenLogprobs | None) -> None:
        """Add a token that was chosen after the answer's end."""
        self.withheld = token
        if logprobs is not None:
            self.logprobs.append(logprobs)

    def generation(self, reason: FinishReason, error: BaseException | None = None) -> Generation:
        """The result; one with the reason "error" has no ids."""
        scores, failed = self.score.result() if self.score is not None else (None, None)
        following, unscored = self.next_score.result() if self.next_score is not None else (None, None)
        varied, unread = self.next_score.of_variants() if self.next_score is not None else (None, None)
        value, unknown = (None, None) if self.value is None else self.value.result()
        values, unfinished = (None, None) if self.value is None else self.value.of_variants()
        done = reason != "error"
        return Generation(
            key=self.key,
            prompt_ids=self.request.prompt_ids,
            generated_ids=self.generated_ids if done else (),
            finish_reason=reason,
            cached_tokens=self.cached if self.variants is None else self.variants.cached,
            error=error or failed or unscored or unread or unknown or unfinished,
            logprobs=tuple(self.logprobs) if done and self.request.top_logprobs is not None else None,
            prompt_logprobs=scores,
            next_logprobs=following,
            variant_logprobs=varied,
            value=value,
            variant_values=values,
        )


def unread(request: Request, reason: FinishReason, error: BaseException | None = None) -> Generation:
    """Result of a request that never had a slot."""
    return Generation(
        key=request.key, prompt_ids=request.prompt_ids, generated_ids=(), finish_reason=reason, error=error
    )


def in_pack(slots: Sequence[Slot]) -> Iterator[int]:
    """Places in the pass of all tokens whose logits are computed, ascending."""
    for slot in slots:
        end = slot.first + slot.count
        yield from range(end - slot.logits, end)
