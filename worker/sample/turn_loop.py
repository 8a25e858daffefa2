"""Turns of a batch's samples: each turn is one engine batch of all samples that go on.

Most jobs have one turn per sample. Evaluations with tools have several.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from actograph.contract.errors import ActographError, CaptureFailed
from actograph.contract.resources import ToolUseEnd
from actograph.contract.specs import SamplingSpec, sample_seed
from worker.engine.requests import EarlierRows, Generation, GenerationRequest, RowChunk, SummedRows
from worker.runners.runner import Prompt
from worker.sample.choosers import TurnTokens
from worker.sample.conversation import Conversation, TurnPrompt
from worker.sample.generation import BatchGenerator, RunningLeases
from worker.sample.outcome import Outcome
from worker.sample.recording import BatchRecorder
from worker.sample.unforeseen import unforeseen


@dataclass
class _Talk:
    """State of one sample."""

    outcome: Outcome
    conversation: Conversation
    prompt: Prompt
    results_from: int | None = None
    continues: bool = False
    running: bool = True
    #: hook -> summary of the rows of all turns so far
    summed: Mapping[str, SummedRows] = field(default_factory=dict)
    #: rows that a further turn replaces: summaries, and the last row
    latest: dict[str, RowChunk] = field(default_factory=dict)

    def end(self, error: ActographError | None = None) -> None:
        self.running = False
        self.outcome = replace(self.outcome, error=error)


class TurnLoop:
    """Runs the turns of one batch.

    Args:
        recorder: takes the rows; None if nothing is captured.
    """

    def __init__(
        self, generator: BatchGenerator, recorder: BatchRecorder | None, keeper: RunningLeases
    ) -> None:
        self._generator = generator
        self._runner = generator.runner
        self._recorder = recorder
        self._keeper = keeper
        origin = generator.provenance
        self._positions = None if origin is None else origin.capture.positions
        #: whether rows are summed up over several turns
        self._summarises = (
            origin is not None
            and self._runner.takes_turns
            and origin.shaping.summarises
            and self._positions != "last"
        )

    def run(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Every outcome with its conversation or error."""
        places = range(len(outcomes))
        done = self._talk(dict(zip(places, outcomes, strict=True)))
        # if memory ran out in a later turn, rows of earlier turns are lost: run the sample again, alone
        for place in [p for p, outcome in done.items() if outcome is None]:
            done |= self._talk({place: outcomes[place]})
        return [
            outcome or replace(outcomes[place], error=CaptureFailed("memory ran out between two turns"))
            for place, outcome in sorted(done.items())
        ]

    def _talk(self, outcomes: Mapping[int, Outcome]) -> dict[int, Outcome | None]:
        """Place in the batch -> outcome; None if the sample must run again."""
        talks = {
            place: _Talk(outcome, Conversation(self._generator.markup), outcome.prompt)
            for place, outcome in outcomes.items()
            if outcome.prompt is not None
        }
        torn: set[int] = set()
        while running := {place: talk for place, talk in talks.items() if talk.running}:
            for sampling, group in self._by_sampling(running):
                self._turn(group, sampling, torn)
        return {place: None if place in torn else talk.outcome for place, talk in talks.items()}

    def _by_sampling(
        self, talks: Mapping[int, _Talk]
    ) -> Iterator[tuple[SamplingSpec | None, dict[int, _Talk]]]:
        """Groups with equal sampling, in the order of their first members; each sample has its own seed."""
        groups: list[tuple[SamplingSpec | None, dict[int, _Talk]]] = []
        for place, talk in talks.items():
            sampling = self._runner.sampling_of(talk.outcome.lease)
            sampling = sampling and sampling.model_copy(update={"seed": 0})
            group = next((members for known, members in groups if known == sampling), None)
            if group is None:
                groups.append((sampling, group := {}))
            group[place] = talk
        yield from groups

    def _turn(self, group: Mapping[int, _Talk], sampling: SamplingSpec | None, torn: set[int]) -> None:
        """Run one turn of these samples."""
        begun = [talk.conversation.begin(talk.prompt.token_ids, talk.results_from) for talk in group.values()]
        requests = [self._request(talk, prompt) for talk, prompt in zip(group.values(), begun, strict=True)]
        leases = [talk.outcome.lease for talk in group.values()]
        sink = None
        if self._recorder is not None:
            turns = list(zip(group, group.values(), begun, strict=True))
            sink = _TurnSink(self._recorder, turns, torn, self._runner.takes_turns, self._positions == "last")
        generations = self._generator.run(leases, requests, sampling, sink, self._keeper)
        for (place, talk), prompt, request, generation in zip(
            group.items(), begun, requests, generations, strict=True
        ):
            error = self._generator.error_of(generation)
            if error is not None or place in torn:
                talk.end(error)
                if error is not None:
                    torn.discard(place)  # it failed: it does not run again
                continue
            finished = generation
            if talk.prompt.truncated_from is not None:
                finished = replace(generation, finish_reason="length")
            talk.conversation.end(prompt, finished)
            if request.earlier is not None:
                talk.summed = request.earlier.after
            try:
                self._follow(place, talk, finished, sampling)
            except ActographError as reason:
                talk.end(reason)
            except Exception as unexpected:  # noqa: BLE001 (it fails this sample alone, and the log has the trace)
                talk.end(unforeseen(unexpected, f"while sample {talk.outcome.lease.id} was prompted again"))

    def _request(self, talk: _Talk, begun: TurnPrompt) -> GenerationRequest:
        lease, conversation, turn = talk.outcome.lease, talk.conversation, len(talk.conversation.generations)
        steering, markup = self._generator.steering, self._generator.markup
        # the seed of the first turn would draw the same noise in every turn
        seed, edits = lease.seed, steering.edits(lease.condition)
        chooser: TurnTokens | None = None
        if turn:
            seed = sample_seed(lease.seed, turn, 0)
            # a token that several turns run is edited in each of them
            edits = steering.edits_where(
                lease.condition, lambda positions: TurnTokens(conversation, begun, positions, markup)
            )
        if turn and self._positions is not None and self._positions != "last":
            # rows of earlier turns are not kept again
            chooser = TurnTokens(conversation, begun, self._positions, markup, begun.first_row)
        return GenerationRequest(
            key=lease.id,
            prompt_ids=begun.ids,
            seed=seed,
            edits=edits,
            chooser=chooser,
            max_tokens=talk.prompt.max_tokens,
            top_logprobs=talk.prompt.top_logprobs,
            score_prompt=talk.prompt.score_prompt,
            stop_at=talk.prompt.stop_at,
            earlier=EarlierRows(talk.summed) if self._summarises else None,
        )

    def _follow(self, place: int, talk: _Talk, generation: Generation, sampling: SamplingSpec | None) -> None:
        """Prepare the next turn, or end the sample."""
        lease, turns = talk.outcome.lease, [g.generated_ids for g in talk.conversation.generations]
        ended: ToolUseEnd = "length" if generation.finish_reason == "length" else "answer"
        if ended == "answer":
            further = self._runner.further_turn(lease, turns)
            if isinstance(further, str):
                ended = further
            elif self._exceeds_context(further.prompt, sampling):
                ended = "context_length"
            else:
                talk.prompt, talk.results_from = further.prompt, further.results_from
                talk.continues = further.continues
                return
        talk.running = False
        if self._recorder is not None and talk.latest:
            try:
                self._recorder.write(place, talk.latest)
            except Exception as error:  # noqa: BLE001 (as in the engine: it fails this sample alone)
                talk.end(self._generator.error_of(replace(generation, error=error)))
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

    def _exceeds_context(self, prompt: Prompt, sampling: SamplingSpec | None) -> bool:
        most = sampling.max_tokens if prompt.max_tokens is None and sampling else prompt.max_tokens or 0
        return len(prompt.token_ids) + most > self._generator.context_length


@dataclass(frozen=True)
class _TurnSink:
    """Passes the rows of one turn to the recorder, with the samples' places and token numbers.

    Attributes:
        turns: place in the batch, the sample, its prompt.
        takes_turns: whether a sample may have several turns.
        last_only: keep only the last row of the last turn.
    """

    recorder: BatchRecorder
    turns: Sequence[tuple[int, _Talk, TurnPrompt]]
    torn: set[int]
    takes_turns: bool
    last_only: bool

    def write(self, index: int, rows: Mapping[str, RowChunk]) -> None:
        place, talk, begun = self.turns[index]
        if place in self.torn:
            return
        if not self.takes_turns:
            self.recorder.write(place, rows)
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
