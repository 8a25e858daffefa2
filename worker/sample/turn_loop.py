"""Samples of several turns: each turn is one batch of all samples that go on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from actograph.contract.errors import ActographError, CaptureFailed
from actograph.contract.resources.tool_use import ToolUseEnd
from actograph.contract.row_selection import Positions
from actograph.contract.specs import SamplingSpec, sample_seed
from worker.engine.requests import (
    EarlierRows,
    Generation,
    GenerationRequest,
    RowChunk,
    RowSink,
    SummedRows,
)
from worker.runners.runner import Prompt, Runner
from worker.sample.choosers import TurnTokens
from worker.sample.conversation import Conversation, TurnPrompt
from worker.sample.outcome import Outcome, by_sampling
from worker.sample.recording import UnitRecorder
from worker.sample.segments import Markup
from worker.sample.steering import Steering
from worker.sample.unforeseen import unforeseen

#: requests of one batch, their sampling and sink -> generations
Generate = Callable[[Sequence[GenerationRequest], SamplingSpec, RowSink | None], list[Generation]]


@dataclass
class _Talk:
    """State of one sample."""

    outcome: Outcome
    conversation: Conversation
    prompt: Prompt
    results_from: int | None = None
    continues: bool = False
    running: bool = True
    #: what the job sums up, of the rows of the turns so far
    summed: Mapping[str, SummedRows] = field(default_factory=dict)
    #: rows that a further turn replaces: what is summed up, and the last row
    latest: dict[str, RowChunk] = field(default_factory=dict)


class TurnLoop:
    """Runs the turns of a batch's samples.

    Args:
        positions: rows to keep; None if nothing is captured.
        summarises: whether rows are summed up, then over those of all turns.
        generate: runs one batch.
        error_of: the error of a generation; None if it is a result.
    """

    def __init__(
        self,
        *,
        runner: Runner,
        steering: Steering,
        markup: Markup,
        context_length: int,
        positions: Positions | None,
        summarises: bool = False,
        recorder: UnitRecorder | None,
        generate: Generate,
        error_of: Callable[[Generation], ActographError | None],
    ) -> None:
        self._runner = runner
        self._steering = steering
        self._markup = markup
        self._context_length = context_length
        self._positions = positions
        self._summarises = summarises
        self._recorder = recorder
        self._generate = generate
        self._error_of = error_of

    def run(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Every outcome with its conversation or error."""
        places = range(len(outcomes))
        done = self._talk(dict(zip(places, outcomes, strict=True)))
        # memory that ran out in a later turn took the rows of earlier turns: run again, alone
        for place in [p for p, outcome in done.items() if outcome is None]:
            done |= self._talk({place: outcomes[place]})
        return [
            outcome or replace(outcomes[place], error=CaptureFailed("memory ran out between two turns"))
            for place, outcome in sorted(done.items())
        ]

    def _talk(self, outcomes: Mapping[int, Outcome]) -> dict[int, Outcome | None]:
        """Place in the batch -> outcome; None if the sample must run again."""
        talks = {
            place: _Talk(outcome, Conversation(self._markup), outcome.prompt)
            for place, outcome in outcomes.items()
            if outcome.prompt is not None
        }
        torn: set[int] = set()
        while running := {place: talk for place, talk in talks.items() if talk.running}:
            for sampling, group in by_sampling(running, lambda talk: talk.outcome.lease, self._runner):
                assert sampling is not None  # what is only read takes no turns
                self._turn(group, sampling, torn)
        return {place: None if place in torn else talk.outcome for place, talk in talks.items()}

    def _turn(self, group: Mapping[int, _Talk], sampling: SamplingSpec, torn: set[int]) -> None:
        """Run one turn of these samples."""
        begun = {
            place: talk.conversation.begin(talk.prompt.token_ids, talk.results_from)
            for place, talk in group.items()
        }
        requests = [self._request(talk, begun[place]) for place, talk in group.items()]
        sink = None
        if self._recorder is not None:
            turns = [(place, group[place], prompt) for place, prompt in begun.items()]
            sink = _TurnSink(self._recorder, turns, torn, last_only=self._positions == "last")
        generations = self._generate(requests, sampling, sink)
        for (place, talk), request, generation in zip(group.items(), requests, generations, strict=True):
            error = self._error_of(generation)
            if error is not None or place in torn:
                talk.running = False
                talk.outcome = replace(talk.outcome, error=error)
                if error is not None:
                    torn.discard(place)  # alone or not, it has failed
                continue
            talk.conversation.end(begun[place], generation)
            if request.earlier is not None:
                talk.summed = request.earlier.after
            try:
                self._follow(place, talk, generation, sampling)
            except Exception as unexpected:  # noqa: BLE001 (it fails this sample alone, and the log has the trace)
                reason = unforeseen(unexpected, f"while sample {talk.outcome.lease.id} was prompted again")
                talk.running, talk.outcome = False, replace(talk.outcome, error=reason)

    def _request(self, talk: _Talk, begun: TurnPrompt) -> GenerationRequest:
        lease, turn = talk.outcome.lease, len(talk.conversation.turns)
        conversation, markup = talk.conversation, self._markup
        chooser, last_only = None, self._positions == "last"
        if self._positions is not None and not last_only:
            # rows that an earlier turn has are not kept again
            chooser = TurnTokens(conversation, begun, self._positions, markup, begun.first_row)
        return GenerationRequest(
            key=lease.id,
            prompt_ids=begun.ids,
            # the same noise in every turn would tie their choices together
            seed=lease.seed if turn == 0 else sample_seed(lease.seed, turn, 0),
            # a token that several turns run is changed in each of them, so that its rows stay its rows
            edits=self._steering.edits_where(
                lease.condition, lambda positions: TurnTokens(conversation, begun, positions, markup)
            ),
            chooser=chooser,
            max_tokens=talk.prompt.max_tokens,
            stop_at=talk.prompt.stop_at,
            earlier=EarlierRows(talk.summed) if self._summarises and not last_only else None,
        )

    def _follow(self, place: int, talk: _Talk, generation: Generation, sampling: SamplingSpec) -> None:
        """Prepare the next turn, or note that there is none and why."""
        lease, turns = talk.outcome.lease, [g.generated_ids for g in talk.conversation.generations]
        further = None
        ended: ToolUseEnd = "length" if generation.finish_reason == "length" else "answer"
        if ended == "answer":
            try:
                answer = self._runner.further_turn(lease, turns)
            except ActographError as error:
                talk.running, talk.outcome = False, replace(talk.outcome, error=error)
                return
            if isinstance(answer, str):
                ended = answer
            elif len(answer.prompt.token_ids) + _most(answer.prompt, sampling) > self._context_length:
                ended = "context_length"
            else:
                further = answer
        if further is not None:
            talk.prompt, talk.results_from = further.prompt, further.results_from
            talk.continues = further.continues
            return
        talk.running = False
        if self._recorder is not None and talk.latest:
            try:
                self._recorder.write(place, talk.latest)
            except Exception as error:  # noqa: BLE001 (as the engine does: it fails this sample alone)
                talk.outcome = replace(talk.outcome, error=self._error_of(replace(generation, error=error)))
                return
        if talk.continues:
            whole = tuple(talk.conversation.token_ids[talk.conversation.prompt_tokens :])
            generation = replace(generation, generated_ids=whole)
        talk.outcome = replace(
            talk.outcome,
            generation=generation,
            conversation=talk.conversation,
            tools=self._runner.tools_of(lease, turns, ended),
        )


def _most(prompt: Prompt, sampling: SamplingSpec) -> int:
    return sampling.max_tokens if prompt.max_tokens is None else prompt.max_tokens


@dataclass(frozen=True)
class _TurnSink:
    """Passes the rows of one turn on, with the samples' places and their token numbers.

    Attributes:
        turns: place in the unit, the sample, the turn that is run.
        last_only: of a turn's rows just the last is kept, and of the turns' the last turn's.
    """

    recorder: UnitRecorder
    turns: Sequence[tuple[int, _Talk, TurnPrompt]]
    torn: set[int]
    last_only: bool

    def write(self, index: int, rows: Mapping[str, RowChunk]) -> None:
        place, talk, begun = self.turns[index]
        if place in self.torn:
            return
        at_once: dict[str, RowChunk] = {}
        for hook, chunk in rows.items():
            if chunk.over is not None:
                talk.latest[hook] = chunk
            else:
                (talk.latest if self.last_only else at_once)[hook] = _numbered(chunk, begun)
        if at_once:
            self.recorder.write(place, at_once)

    def reset(self, index: int) -> None:
        place, talk, _ = self.turns[index]
        self.recorder.reset(place)
        talk.latest.clear()
        if talk.conversation.turns:
            self.torn.add(place)


def _numbered(chunk: RowChunk, begun: TurnPrompt) -> RowChunk:
    places = chunk.tokens
    if places is None:
        places = tuple(range(chunk.first_row, chunk.first_row + len(chunk.tensor)))
    tokens = tuple(begun.number(place) for place in places)
    return replace(chunk, first_row=next(iter(tokens), 0), tokens=tokens)
