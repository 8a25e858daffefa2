"""One sample from its prompt to its outcome: its turns, its rows, its score and its session.

Most jobs have one turn per sample. Evaluations with tools have several; each is a request of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from actograph.contract.errors import ContextLengthExceeded
from actograph.contract.job_specs import check_sampling
from actograph.contract.resources import ToolUseEnd
from actograph.contract.row_selection import Positions
from actograph.contract.specs import SamplingSpec, sample_seed
from evals.tools import Called
from storage.artifacts.store import ArtifactStore
from storage.broker.live_text import LiveTextWriter
from storage.queue.leases import LeasedSample
from worker.engine.messages import Edit, Generation, Request, Rows, TokenRule
from worker.runners.runner import Prompt, ReplayedSample
from worker.sample.conversation import Conversation, TurnPrompt
from worker.sample.held_rows import HeldRows
from worker.sample.leased_run import LeasedRun
from worker.sample.open_job import OpenJob
from worker.sample.outcome import Outcome
from worker.sample.recorder import SampleRecorder
from worker.sample.replay import Replay, steering_for
from worker.sample.token_rules import named, rule_of


class SampleRun(LeasedRun):
    """The state of one prompted sample."""

    def __init__(
        self, lease: LeasedSample, job: OpenJob, store: ArtifactStore, *, urgent: bool = False
    ) -> None:
        """Build the first prompt; a faulty one ends the sample with its error."""
        super().__init__(Outcome(lease=lease, provenance=job.provenance), urgent=urgent)
        self._job = job
        self._runner = job.runner
        self.calls_tools = self._runner.takes_turns
        #: the turn that runs
        self._begun: TurnPrompt | None = None
        self._recorder: SampleRecorder | None = None
        #: the stored sample that is read again
        self._replay: Replay | None = None
        origin = job.provenance
        #: of the rows that the engine keeps
        self._positions = None if origin is None else origin.captured
        #: whether rows are summed up over several turns
        self._summarises = (
            origin is not None
            and self._runner.takes_turns
            and origin.summarises
            and self._positions != "last"
        )
        if job.refused is not None:
            self.fail(job.refused)
            return
        with self._failing("while sample {} was prompted"):
            self.sampling = self._runner.sampling_of(lease)
            if self.sampling is not None:  # before the first load nobody knew the vocabulary
                check_sampling(self.sampling, self._job.engine.structure)
            first = self._runner.prompt(lease)
            self.outcome = replace(self.outcome, prompt=first)
            if first.replayed is not None:
                self._replay = self._replay_of(first.replayed)
            else:
                self._check_context(first)
            if origin is not None:
                sampling = self._own_sampling(first)
                self._recorder = SampleRecorder(
                    store,
                    lease,
                    origin,
                    sampling=sampling,
                    truncated_from=first.truncated_from,
                    replay=self._replay,
                )
            self._start(first)

    def _start(self, first: Prompt) -> None:
        self.running = True
        self._conversation = Conversation(self._job.markup, self._replay.names if self._replay else None)
        self._prompt = first
        self._results_from: int | None = None
        self._continues = False
        self._called: Called = []
        #: rows that a further turn replaces: summaries, and the last row
        self._latest: dict[str, Rows] = {}
        #: rows of positions that count from the end of the generation
        self._held: HeldRows | None = None
        if (origin := self._job.provenance) is not None:
            self._held = HeldRows(origin.held_rows) if origin.held_rows else None

    def _replay_of(self, source: ReplayedSample) -> Replay:
        origin = self._job.provenance
        return Replay(
            source,
            positions=None if origin is None else origin.capture.positions,
            steering=steering_for(source, self._job.steering_of),
            structure=self._job.engine.structure,
            markup=self._job.markup,
        )

    @property
    def live(self) -> LiveTextWriter | None:
        """Takes the text while it is generated; None if nobody follows it."""
        return self._job.live if self.lease.input.get("live") and self.sampling is not None else None

    @property
    def readouts(self) -> Sequence[str]:
        capture = self._job.capture
        return () if capture is None else [one.name for one in capture.readouts]

    @property
    def was_asked(self) -> bool:
        """Whether the engine has had a request of it."""
        return self._begun is not None

    @property
    def sums(self) -> str | None:
        """Name under which the engine keeps summaries from turn to turn; None if it keeps none."""
        return self.lease.key if self._summarises else None

    def request(self, *, priority: bool = False) -> Request:
        """The engine's request for the next turn."""
        lease, job, prompt = self.lease, self._job, self._prompt
        turn = len(self._conversation.generations)
        begun = self._begun = self._conversation.begin(prompt.token_ids, self._results_from)
        ids = begun.ids if self._replay is None else self._replay.read(turn)
        return Request(
            key=lease.key,
            prompt_ids=ids,
            # the seed of the first turn would draw the same noise in every turn
            seed=sample_seed(lease.seed, turn, 0) if turn else lease.seed,
            sampling=self.sampling or SamplingSpec(),
            max_tokens=0 if self.sampling is None else prompt.max_tokens,
            top_logprobs=prompt.top_logprobs,
            score_prompt=prompt.score_prompt,
            scored_next=prompt.scored_next,
            stop_at=prompt.stop_at,
            grammar=prompt.grammar,
            # a token that several turns run is edited in each of them
            edits=self._edits(begun, turn),
            capture=job.capture,
            rule=self._rule(begun, turn),
            stops=() if job.provenance is None or self.sampling is None else job.provenance.stops,
            sums=self.sums,
            time_limit=job.time_limit,
            priority=priority,
            live=self.live is not None,
        )

    def _edits(self, begun: TurnPrompt, turn: int) -> tuple[Edit, ...]:
        if self._replay is not None:
            return self._replay.edits(begun, turn)

        def select(positions: Positions) -> TokenRule:
            return rule_of(positions, self._conversation, begun, self._job.markup)

        return self._job.steering.edits(self.lease.condition, select, is_first=not turn)

    def _rule(self, begun: TurnPrompt, turn: int) -> TokenRule | None:
        """The tokens whose rows are kept, if the capture's positions do not tell."""
        if self._replay is not None:
            return self._replay.kept(begun, turn)
        positions = self._positions
        if positions is None or positions == "last" or (not turn and named(positions) is not None):
            return None
        # rows of earlier turns are not kept again
        return rule_of(positions, self._conversation, begun, self._job.markup, from_place=begun.first_row)

    def write(self, rows: Mapping[str, Rows]) -> None:
        """Take rows of the turn that runs. Raises CaptureFailed, and the store's errors."""
        if self._recorder is None or self._begun is None:
            return
        if self._held is not None:
            for hook, chunk in rows.items():
                self._held.add(hook, _numbered(chunk, self._begun))
            return
        if self._runner.takes_turns:
            at_once: dict[str, Rows] = {}
            for hook, chunk in rows.items():
                if chunk.over is not None:
                    self._latest[hook] = chunk
                else:
                    numbered = _numbered(chunk, self._begun)
                    if self._positions == "last":
                        self._latest[hook] = numbered.copied()
                    else:
                        at_once[hook] = numbered
            rows = at_once
        if rows:
            self._recorder.write(rows)

    def end_turn(self, generation: Generation) -> None:
        """Take the engine's answer to `request`."""
        assert self._begun is not None
        error = self._job.error_of(generation)
        if error is not None:
            self.fail(error)
            return
        if self._replay is not None:
            generation = self._replay.answer(generation, len(self._conversation.generations))
        elif self._prompt.truncated_from is not None:
            generation = replace(generation, finish_reason="length")
        self._conversation.end(self._begun, generation)

    def follow(self) -> None:
        """Prepare the turn after the last one, or end."""
        with self._failing("while sample {} was prompted again"):
            self._follow(self._conversation.generations[-1])

    def _follow(self, generation: Generation) -> None:
        """Prepare the next turn, or end the sample."""
        turns = [one.generated_ids for one in self._conversation.generations]
        if self._replay is not None:
            following = self._replay.prompt(len(turns), self._prompt)
            if following is not None:
                self._prompt = following
                return
        ended: ToolUseEnd = "length" if generation.finish_reason == "length" else "answer"
        if ended == "answer":
            further = self._runner.further_turn(self.lease, turns, self._called)
            if isinstance(further, str):
                ended = further
            elif len(further.prompt.token_ids) + self._most_tokens(further.prompt) > self._job.context_length:
                ended = "context_length"
            else:
                self._prompt, self._results_from = further.prompt, further.results_from
                self._continues = further.continues
                return
        late = self._late_rows()
        if self._recorder is not None and late:
            try:
                self._recorder.write(late)
            except Exception as error:  # noqa: BLE001 (as in the engine: it fails this sample alone)
                reason = self._job.error_of(replace(generation, error=error))
                assert reason is not None
                self.fail(reason)
                return
        if self._continues:
            whole = tuple(self._conversation.token_ids[self._conversation.prompt_tokens :])
            generation = replace(generation, generated_ids=whole)
        self.running = False
        self.outcome = replace(
            self.outcome,
            generation=generation,
            conversation=self._conversation,
            tools=self._replay.source.tools
            if self._replay is not None
            else self._runner.tools_of(self.lease, turns, self._called, ended),
        )

    def _late_rows(self) -> Mapping[str, Rows]:
        """Rows that only the end of the sample decides."""
        origin = self._job.provenance
        if self._held is None or origin is None:
            return self._latest
        due = self._conversation.due_tokens(origin.capture.positions, tail_only=False)
        return self._held.chosen(frozenset(due))

    def decode(self) -> None:
        """Add text and log probabilities to a finished sample. Tokenizers serve one thread at a time."""
        generation, prompt = self.outcome.generation, self.outcome.prompt
        if self.outcome.error is not None or generation is None or prompt is None:
            return
        if prompt.replayed is not None:
            self.outcome = replace(self.outcome, completion=prompt.replayed.completion)
            return
        with self._failing("while sample {} was decoded"):
            ids = generation.generated_ids
            # neither an end token nor what was chosen after the end is text
            is_end = self.sampling is not None and bool(ids) and ids[-1] in self._job.end_ids(self.sampling)
            if is_end or generation.finish_reason == "readout":
                ids = ids[:-1]
            completion = prompt.begun + self._runner.completion(self.lease, ids)
            logprobs = self._runner.logprobs(self.lease, generation)
            self.outcome = replace(self.outcome, completion=completion, logprobs=logprobs)

    def score(self) -> None:
        """Add scores to a decoded sample. This may take seconds."""
        completion, prompt = self.outcome.completion, self.outcome.prompt
        if self.outcome.error is not None or completion is None:
            return
        if prompt is not None and prompt.replayed is not None:
            self.outcome = replace(self.outcome, scores=prompt.replayed.scores)
            return
        with self._failing("while sample {} was scored"):
            scores = self._runner.score(self.lease, completion, self.outcome.generated_tokens)
            self.outcome = replace(self.outcome, scores=scores)

    @property
    def has_session(self) -> bool:
        """Whether a session of this ended sample is to be stored."""
        return (
            self._recorder is not None
            and self.outcome.error is None
            and self.outcome.conversation is not None
        )

    def store(self) -> None:
        """Store the session of a scored sample; without it the sample fails."""
        if self._recorder is None or not self.has_session:
            return
        assert self.outcome.conversation is not None
        with self._failing("while the session of sample {} was stored"):
            recorded = self._recorder.finish(self.outcome.conversation)
            self.outcome = replace(self.outcome, recorded=recorded)

    def discard(self) -> None:
        """Remove what was written for a session that is not in the outcome."""
        if self._recorder is not None and self.outcome.recorded is None:
            self._recorder.reset()

    def _own_sampling(self, first: Prompt) -> SamplingSpec | None:
        """The sampling with the sample's own `max_tokens`, for the manifest."""
        if self.sampling is None or first.max_tokens is None:
            return self.sampling
        return self.sampling.model_copy(update={"max_tokens": first.max_tokens})

    def _most_tokens(self, prompt: Prompt) -> int:
        if prompt.max_tokens is not None:
            return prompt.max_tokens
        return self.sampling.max_tokens if self.sampling else 0

    def _check_context(self, prompt: Prompt) -> None:
        """Raise ContextLengthExceeded if the first prompt has no room for its answer."""
        count, most, context = len(prompt.token_ids), self._most_tokens(prompt), self._job.context_length
        if count + most > context:
            more = f" and max_tokens {most} together exceed" if most else " exceed"
            hint = "" if most else "; truncate: true cuts it"
            raise ContextLengthExceeded(
                f"the prompt's {count} tokens{more} the model's context of {context} tokens{hint}"
            )


def _numbered(chunk: Rows, begun: TurnPrompt) -> Rows:
    places = chunk.tokens
    if places is None:
        places = tuple(range(chunk.first_row, chunk.first_row + chunk.count))
    tokens = tuple(begun.number(place) for place in places)
    return replace(chunk, first_row=next(iter(tokens), 0), tokens=tokens)
