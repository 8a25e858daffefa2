"""A pair of prompts from its cells to its outcome: requests that run at once.

The baselines come first, then the cells. Each is a prompt that is only read, with the log probabilities of
the metric's tokens after it. Many cells are variants of one request; if a run reads no variants, each is a
request. What the pair has found is stored when its last request has ended.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from actograph.analysis.patching import is_defined
from actograph.contract.job_specs import PatchSpec
from actograph.contract.patching import ARRAYS_FILE, PAIR_FILE, PatchedPair
from storage.analyses import result_files
from storage.artifacts.store import ArtifactStore
from storage.queue.leases import LeasedSample
from worker.engine.messages import Edit, Generation, Request, Rows
from worker.runners.patch import PatchRunner
from worker.runners.runner import PromptPair, ReplayedSample
from worker.sample.conversation import Conversation
from worker.sample.leased_run import LeasedRun
from worker.sample.open_job import OpenJob
from worker.sample.outcome import Outcome
from worker.sample.patch_cells import Cell, PairCells, cells_of
from worker.sample.replay import steering_for
from worker.sample.token_rules import rule_of

#: stands before the number of a request in its key
CELL = "/"


class _Asked(NamedTuple):
    """A request: the side that it reads, and what it finds.

    Attributes:
        cells: whose metrics it finds; without any, it finds the baseline of its side.
        is_joint: the cells are its variants.
    """

    side: str
    cells: Sequence[Cell] = ()
    is_joint: bool = False


class PairRun(LeasedRun):
    """The state of one pair.

    Attributes:
        spec: of the job.
    """

    def __init__(
        self, lease: LeasedSample, job: OpenJob, store: ArtifactStore, *, urgent: bool = False
    ) -> None:
        """Read both sessions; what keeps them from being a pair ends the sample with its error."""
        super().__init__(Outcome(lease=lease), urgent=urgent)
        assert isinstance(job.runner, PatchRunner)
        self._job, self._store, self._runner = job, store, job.runner
        self.spec: PatchSpec = job.runner.spec
        self._sent = 0
        if job.refused is not None:
            self.fail(job.refused)
            return
        with self._failing("while pair {} was read"):
            prompt = self._runner.prompt(lease)
            assert prompt.pair is not None
            self.outcome = replace(self.outcome, prompt=prompt)
            self._begin(prompt.pair)

    def _begin(self, pair: PromptPair) -> None:
        self._pair = pair
        source = self.spec.source
        into = "corrupted" if source == "clean" else "clean"
        structure = self._job.engine.structure
        self._edits = {name: self._own_edits(side) for name, side in pair.sides.items()}
        self._cells: PairCells = cells_of(
            self.spec, structure, pair.sides[source], pair.sides[into], steered=any(self._edits.values())
        )
        self._metric = np.full(self._cells.shape, np.nan)
        self._baselines: dict[str, float] = {}
        self._into = into
        self._asked_by_key: dict[str, _Asked] = {}
        self._requests = self._all_requests()
        self.running = True

    def _own_edits(self, side: ReplayedSample) -> tuple[Edit, ...]:
        """The interventions of a stored sample, at its prompt."""
        steering = steering_for(side, self._job.steering_of)
        conversation = Conversation(self._job.markup)
        begun = conversation.begin(side.turns[0][0])
        return steering.edits(
            side.condition,
            lambda positions: rule_of(positions, conversation, begun, self._job.markup),
            is_first=True,
        )

    def _all_requests(self) -> Iterator[_Asked]:
        for name in self._pair.sides:
            yield _Asked(name)
        options = self._job.options
        if self._job.engine.varies and not (options.traced or options.repeatable):
            for cells in self._cells.together(len(self._pair.sides[self._into].turns[0][0])):
                yield _Asked(self._into, cells, len(cells) > 1)
        else:
            for cell in self._cells:
                yield _Asked(self._into, [cell])

    @property
    def unsent(self) -> int:
        """Baselines and cells that the engine has not had."""
        return 2 + len(self._cells) - self._sent if self.running and self.outcome.error is None else 0

    def request(self, *, priority: bool = False) -> Request:
        """The engine's request for the next baseline or cells."""
        asked = next(self._requests)
        key = f"{self.lease.key}{CELL}{self._sent}"
        self._sent += len(asked.cells) or 1
        self._asked_by_key[key] = asked
        edits = tuple(cell.edits for cell in asked.cells)
        alone = () if asked.is_joint else tuple(edit for own in edits for edit in own)
        return Request(
            key=key,
            prompt_ids=self._pair.sides[asked.side].turns[0][0],
            seed=0,
            max_tokens=0,
            next_tokens=self._pair.next_tokens,
            value_at=self._pair.values.get(asked.side),
            variants=edits if asked.is_joint else (),
            edits=(*self._edits[asked.side], *alone),
            time_limit=self._job.time_limit,
            priority=priority,
        )

    @property
    def was_asked(self) -> bool:
        return self._sent > 0

    def write(self, rows: Mapping[str, Rows]) -> None:
        """Nothing is captured."""

    def end_turn(self, generation: Generation) -> None:
        """Take the engine's answer to a request; the last one, or an error, ends the pair."""
        asked = self._asked_by_key.pop(generation.key)
        error = self._job.error_of(generation)
        if error is not None:
            if self.outcome.error is None:
                self.outcome = replace(self.outcome, error=error)
        else:
            found = _metrics(generation, is_joint=asked.is_joint)
            if asked.cells:
                for cell, value in zip(asked.cells, found, strict=True):
                    self._metric[cell.place] = value
            else:
                (self._baselines[asked.side],) = found
            self._count(len(found) * len(generation.prompt_ids), generation.cached_tokens)
            self.outcome = replace(self.outcome, generation=generation)
        if not self._asked_by_key and not self.unsent:
            self.running = False
            if self.outcome.error is None:
                self._fill_unchanged()

    def _fill_unchanged(self) -> None:
        """Cells whose rows are the prompt's own have its metric."""
        unchanged = self._cells.unchanged
        self._metric[:, :, unchanged] = self._baselines[self._into]
        tokens = self._metric[:, :, unchanged].size * len(self._pair.sides[self._into].turns[0][0])
        self._count(tokens, tokens)

    def _count(self, tokens: int, cached: int) -> None:
        """Count tokens of prompts, and those of them that were not computed anew."""
        outcome = self.outcome
        self.outcome = replace(
            outcome, tokens_read=outcome.tokens_read + tokens, tokens_cached=outcome.tokens_cached + cached
        )

    def score(self) -> None:
        """A pair has no scores."""
        self.outcome = replace(self.outcome, scores={})

    @property
    def has_session(self) -> bool:
        return self.outcome.error is None

    def store(self) -> None:
        """Store what was found; without it the sample fails."""
        if not self.has_session:
            return
        with self._failing("while the results of pair {} were stored"):
            found = (self._result().model_dump_json(indent=1) + "\n").encode()
            arrays = result_files.npz({"metric": self._metric})
            files = [(PAIR_FILE, found), (ARRAYS_FILE, arrays)]
            self.outcome = replace(self.outcome, results=result_files.store(self._store, self.lease, files))

    def _result(self) -> PatchedPair:
        clean, corrupted = self._baselines["clean"], self._baselines["corrupted"]
        pair, grid, texts = self._pair, self._cells.grid, self._job.markup.texts
        return PatchedPair(
            clean_session=pair.clean.reader.session_id,
            corrupted_session=pair.corrupted.reader.session_id,
            sample_index=self.lease.sample_index,
            prompt_tokens=len(self.outcome.prompt.token_ids) if self.outcome.prompt else 0,
            answer=pair.answer,
            against=pair.against,
            answer_text="" if pair.answer is None else texts([pair.answer])[0],
            against_text=None if pair.against is None else texts([pair.against])[0],
            clean=clean,
            corrupted=corrupted,
            is_defined=is_defined(clean, corrupted, self._job.engine.structure.dtype),
            points=list(grid.points),
            layers=list(grid.layers),
            positions=list(self._cells.positions),
            heads=None if grid.heads is None else list(grid.heads),
        )


def _metrics(generation: Generation, *, is_joint: bool) -> list[float]:
    """The metric of a prompt, or of each of its variants."""
    if generation.value is not None:
        if not is_joint:
            return [generation.value]
        assert generation.variant_values is not None
        return [generation.value if one is None else one for one in generation.variant_values]
    found = generation.variant_logprobs if is_joint else (generation.next_logprobs,)
    assert found is not None
    differences = []
    for scores in found:
        assert scores is not None
        answer, *against = scores
        differences.append(answer - sum(against))
    return differences
