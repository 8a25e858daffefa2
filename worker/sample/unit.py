"""One unit: a few samples that are run as one batch, from prompts to recorded sessions.

Nothing here touches the index. A sample that fails takes its reason with it and leaves the
others alone; an error of the whole batch is the error of each of its samples. An interrupted unit
keeps the samples that had finished.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from actograph.contract.errors import (
    ActographError,
    CaptureFailed,
    ContextLengthExceeded,
    JobEnded,
    SampleTimeout,
)
from actograph.contract.plans.batch_memory import SCORED_PIECE_BYTES, CaptureNeed, capture_need
from actograph.contract.specs import SamplingSpec
from actograph.settings import Settings
from storage.artifacts.store import ArtifactStore
from storage.broker.live_text import LiveTextWriter
from storage.samples import LeasedSample
from worker.engine.engine import Engine
from worker.engine.model.device_errors import is_device_lost
from worker.engine.model.memory import memory_snapshot
from worker.engine.requests import BufferOptions, Generation, GenerationRequest, RowChunk, RowShaping, RowSink
from worker.engine.traced.generate import OnBatch
from worker.runners.runner import Runner
from worker.sample.live_text import LiveText
from worker.sample.outcome import Interrupted, Outcome, by_sampling
from worker.sample.prompt_reading import PromptReader
from worker.sample.recording import Provenance, Recorded, UnitRecorder
from worker.sample.segments import Markup
from worker.sample.steering import UNSTEERED, Steering
from worker.sample.turn_loop import TurnLoop
from worker.sample.unforeseen import unforeseen
from worker.sample.watched_store import watched

logger = logging.getLogger(__name__)

#: length that prompts are taken to have before any is known
FIRST_GUESS_TOKENS = 512


class RunningLeases(Protocol):
    """The leases of a running batch, as `worker.drain.lease` renews them."""

    def progress(self, _step: int = 0) -> None:
        """Record a decode step, a scored sample or a piece of a file; a silent batch loses its leases."""

    def should_stop(self) -> bool:
        """Whether the batch ends now: all its jobs are cancelled, its leases lost, or the worker stops."""
        ...

    def has_ended(self, job_id: str) -> bool:
        """Whether this job of the batch was cancelled or has ended otherwise."""
        ...


class UnitRunner:
    """Runs the units of one job during one slice."""

    def __init__(
        self,
        *,
        settings: Settings,
        store: ArtifactStore,
        engine: Engine,
        runner: Runner,
        provenance: Provenance | None,
        steering: Steering = UNSTEERED,
        markup: Markup | None = None,
        time_limit: float | None = None,
        live: LiveTextWriter | None = None,
    ) -> None:
        """
        Args:
            provenance: None where the job captures nothing.
            markup: how samples are parted; None: as the tokenizer alone says.
            time_limit: seconds for one sample.
            live: where the text of samples that ask for it goes while it is generated.
        """
        self._time_limit = time_limit
        self._live = live
        #: bytes before and after the last batch, for the worker's report
        self.batch_memory: dict[str, int] = {}
        self._steering = steering
        self._markup = markup or Markup(engine.model.tokenizer)
        self._store = store
        self._engine = engine
        self._runner = runner
        self.provenance = provenance
        self._most = settings.batch_size
        self._longest_prompt = min(FIRST_GUESS_TOKENS, engine.structure.context_length)
        self._options = BufferOptions(
            host_buffer_bytes=settings.host_buffer_bytes, shard_bytes=settings.shard_bytes
        )
        self._reader = PromptReader(
            engine=engine,
            origin=provenance,
            options=self._options,
            most=settings.batch_size,
        )

    def size(self) -> int:
        """Samples that the next unit should have, by the memory plan and the settings.

        Prompts are known only once they are claimed, so the longest one so far stands for them.
        """
        if self._runner.sampling is None:
            return self._reader.plan(prompt_tokens=self._longest_prompt).batch_size
        return self._engine.plan_batch_size(
            self.provenance.hooks if self.provenance else (),
            prompt_tokens=self._longest_prompt,
            max_tokens=self._runner.sampling.max_tokens,
            capture_of=self._capture_of,
            options=self._options,
            scored=SCORED_PIECE_BYTES if self._runner.may_score else 0,
            most=self._most,
        )

    def _capture_of(self, prompt_tokens: int) -> CaptureNeed:
        """What capturing takes for a prompt of so many tokens, counted as the API counts it."""
        if self.provenance is None:
            return CaptureNeed()
        return capture_need(
            self._engine.structure,
            self.provenance.hooks,
            self.provenance.capture,
            prompt_tokens=prompt_tokens,
        )

    def run(self, leases: Sequence[LeasedSample], keeper: RunningLeases) -> list[Outcome]:
        """One outcome for every sample, in order; those that `keeper` cut short are `Interrupted`.

        Session files of completed samples are in the store when this returns.

        Raises:
            Exception: the device is lost (`is_device_lost`); only a new process helps.
        """
        outcomes = {lease.id: self._prompted(lease, keeper) for lease in leases}
        runnable = [o for o in outcomes.values() if o.error is None]
        if runnable:
            recorder = None
            if self.provenance is not None:
                cut = {i: o.prompt.truncated_from for i, o in enumerate(runnable) if o.prompt}
                recorder = UnitRecorder(
                    watched(self._store, keeper.progress),
                    [o.lease for o in runnable],
                    self.provenance,
                    {i: tokens for i, tokens in cut.items() if tokens is not None},
                    [self._sampling_of(o) for o in runnable],
                )
            try:
                ran = self._generate(runnable, recorder, keeper)
                # before any session is stored: a sample that cannot be scored has failed and keeps none
                ran = [self._scored(o, keeper) for o in ran]
                if recorder is not None:
                    ran = _with_sessions(ran, recorder)
            finally:
                if recorder is not None:
                    recorder.discard()
            outcomes |= {o.lease.id: o for o in ran}
        return [outcomes[lease.id] for lease in leases]

    def _sampling_of(self, outcome: Outcome) -> SamplingSpec | None:
        """As the sample is really sampled."""
        sampling, prompt = self._runner.sampling_of(outcome.lease), outcome.prompt
        if sampling is None or prompt is None or prompt.max_tokens is None:
            return sampling
        return sampling.model_copy(update={"max_tokens": prompt.max_tokens})

    def _prompted(self, lease: LeasedSample, keeper: RunningLeases) -> Outcome:
        keeper.progress()
        try:
            prompt = self._runner.prompt(lease)
        except ActographError as error:
            return Outcome(lease=lease, error=error)
        except Exception as error:  # noqa: BLE001 (it fails this sample alone, and the log has the trace)
            return Outcome(lease=lease, error=_unforeseen(error, "prompted", lease))
        self._longest_prompt = max(self._longest_prompt, len(prompt.token_ids))
        context = self._engine.structure.context_length
        max_tokens = self._runner.sampling.max_tokens if self._runner.sampling else 0
        max_tokens = max_tokens if prompt.max_tokens is None else prompt.max_tokens
        if len(prompt.token_ids) + max_tokens > context:
            more = f" and max_tokens {max_tokens} together exceed" if max_tokens else " exceed"
            hint = "" if max_tokens else "; an extract job with truncate: true cuts it"
            too_long = ContextLengthExceeded(
                f"the prompt's {len(prompt.token_ids)} tokens{more} the model's context of {context} "
                f"tokens{hint}"
            )
            return Outcome(lease=lease, prompt=prompt, error=too_long)
        return Outcome(lease=lease, prompt=prompt)

    def _generate(
        self, runnable: Sequence[Outcome], recorder: UnitRecorder | None, keeper: RunningLeases
    ) -> list[Outcome]:
        devices = self._engine.model.devices
        before, started = memory_snapshot(devices), time.monotonic()
        try:
            ran = (
                self._turns(recorder, keeper).run(runnable)
                if self._runner.takes_turns
                else self._one_turn(runnable, recorder, keeper)
            )
        except Exception as error:
            if is_device_lost(error):
                raise
            logger.exception("a unit of job %s failed", runnable[0].lease.job_id)
            return [replace(o, error=_as_error(error)) for o in runnable]
        after = memory_snapshot(devices)
        self.batch_memory = {f"batch_before_{key}": size for key, size in before.items()}
        self.batch_memory |= {f"batch_after_{key}": size for key, size in after.items()}
        logger.info(
            "batch of %d ran %.1f s; memory before %s, after %s",
            len(runnable),
            time.monotonic() - started,
            before,
            after,
        )
        return ran

    def _one_turn(
        self, runnable: Sequence[Outcome], recorder: UnitRecorder | None, keeper: RunningLeases
    ) -> list[Outcome]:
        outcomes = dict(enumerate(runnable))
        for sampling, group in by_sampling(dict(outcomes), lambda o: o.lease, self._runner):
            if keeper.should_stop():
                outcomes |= {place: replace(o, error=Interrupted()) for place, o in group.items()}
                continue
            requests = [
                GenerationRequest(
                    key=o.lease.id,
                    prompt_ids=o.prompt.token_ids,
                    seed=o.lease.seed,
                    edits=self._steering.edits(o.lease.condition),
                    max_tokens=o.prompt.max_tokens,
                    top_logprobs=o.prompt.top_logprobs,
                    score_prompt=o.prompt.score_prompt,
                )
                for o in group.values()
                if o.prompt is not None
            ]
            sink = None if recorder is None else _BatchSink(recorder, list(group))
            if sampling is None:
                generations = self._reader.read(
                    requests, sink, should_stop=keeper.should_stop, on_step=keeper.progress
                )
            else:
                generations = self._followed(
                    [o.lease for o in group.values()], requests, sampling, sink, keeper
                )
            for (place, o), g in zip(group.items(), generations, strict=True):
                outcomes[place] = replace(o, generation=_noted(g, o), error=self._error_of(g))
        return list(outcomes.values())

    def _followed(
        self,
        leases: Sequence[LeasedSample],
        requests: Sequence[GenerationRequest],
        sampling: SamplingSpec,
        sink: RowSink | None,
        keeper: RunningLeases,
    ) -> list[Generation]:
        """Generate, dropping the samples of jobs that end meanwhile, and sending text as it comes."""

        def drop(index: int) -> bool:
            return keeper.has_ended(leases[index].job_id)

        dropping = drop if len({lease.job_id for lease in leases}) > 1 else None
        if self._live is None:
            return self._continue(requests, sampling, sink, keeper, should_drop=dropping)
        with LiveText(self._live, leases, self._runner.live_text, sampling.stop) as live:
            return self._continue(
                requests, sampling, sink, keeper, should_drop=dropping, on_batch=live.on_batch
            )

    def _turns(self, recorder: UnitRecorder | None, keeper: RunningLeases) -> TurnLoop:
        origin = self.provenance

        def generate(
            requests: Sequence[GenerationRequest], sampling: SamplingSpec, sink: RowSink | None
        ) -> list[Generation]:
            longest = max(len(request.prompt_ids) for request in requests)
            self._longest_prompt = max(self._longest_prompt, longest)
            return self._continue(requests, sampling, sink, keeper)

        return TurnLoop(
            runner=self._runner,
            steering=self._steering,
            markup=self._markup,
            context_length=self._engine.structure.context_length,
            positions=origin.capture.positions if origin else None,
            summarises=origin is not None and origin.shaping.summarises,
            recorder=recorder,
            generate=generate,
            error_of=self._error_of,
        )

    def _error_of(self, generation: Generation) -> ActographError | None:
        if generation.error is not None and is_device_lost(generation.error):
            raise generation.error
        if generation.finish_reason == "cancelled":
            return Interrupted()
        if generation.error is None and generation.finish_reason == "timeout":
            return SampleTimeout(
                f"the sample was decoded for more than {self._time_limit:g} s (sample_timeout_seconds); it "
                f"had {len(generation.generated_ids)} tokens then"
            )
        if generation.error is None and generation.finish_reason == "dropped":
            return JobEnded()
        return _as_error(generation.error) if generation.error is not None else None

    def _continue(
        self,
        requests: Sequence[GenerationRequest],
        sampling: SamplingSpec,
        sink: RowSink | None,
        keeper: RunningLeases,
        *,
        should_drop: Callable[[int], bool] | None = None,
        on_batch: OnBatch | None = None,
    ) -> list[Generation]:
        origin = self.provenance
        return self._engine.generate(
            requests,
            sampling=sampling,
            hooks=origin.hooks if origin else (),
            positions=origin.positions if origin else "all",
            dtype=origin.capture.dtype if origin else "model",
            shaping=origin.shaping if origin else RowShaping(),
            sink=sink,
            should_stop=keeper.should_stop,
            on_step=keeper.progress,
            capture_of=self._capture_of,
            options=self._options,
            time_limit=self._time_limit,
            should_drop=should_drop,
            on_batch=on_batch,
        )

    def _scored(self, outcome: Outcome, keeper: RunningLeases) -> Outcome:
        keeper.progress()
        if outcome.error is not None or outcome.generation is None:
            return outcome
        begun = outcome.prompt.begun if outcome.prompt else ""
        try:
            completion = begun + self._runner.completion(outcome.lease, outcome.generation.generated_ids)
            scores = self._runner.score(outcome.lease, completion, outcome.chosen_tokens)
            logprobs = self._runner.logprobs(outcome.lease, outcome.generation)
        except ActographError as error:
            return replace(outcome, error=error)
        except Exception as error:  # noqa: BLE001 (it fails this sample alone, and the log has the trace)
            return replace(outcome, error=_unforeseen(error, "scored", outcome.lease))
        return replace(outcome, completion=completion, scores=scores, logprobs=logprobs)


@dataclass(frozen=True)
class _BatchSink:
    """Hands the rows of one batch on, under the samples' places in the unit."""

    recorder: UnitRecorder
    places: Sequence[int]

    def write(self, index: int, rows: Mapping[str, RowChunk]) -> None:
        self.recorder.write(self.places[index], rows)

    def reset(self, index: int) -> None:
        self.recorder.reset(self.places[index])


def _unforeseen(error: Exception, done: str, lease: LeasedSample) -> ActographError:
    return unforeseen(error, f"while sample {lease.id} was {done}")


def _noted(generation: Generation, outcome: Outcome) -> Generation:
    """A text that was cut to the context ended by its length."""
    if outcome.prompt is None or outcome.prompt.truncated_from is None or generation.error is not None:
        return generation
    return replace(generation, finish_reason="length")


def _with_sessions(outcomes: Sequence[Outcome], recorder: UnitRecorder) -> list[Outcome]:
    """Store the sessions of the samples that went well; one that cannot be stored has failed."""
    good = {i: o.conversation or o.generation for i, o in enumerate(outcomes) if o.error is None}
    sessions = recorder.finish({i: made for i, made in good.items() if made is not None})
    updated = list(outcomes)
    for i, session in sessions.items():
        if isinstance(session, Recorded):
            updated[i] = replace(outcomes[i], recorded=session)
        else:
            updated[i] = replace(outcomes[i], error=session)
    return updated


def _as_error(error: BaseException) -> ActographError:
    if isinstance(error, ActographError):
        return error
    return CaptureFailed(f"{type(error).__name__}: {error}")
