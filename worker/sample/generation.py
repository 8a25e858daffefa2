"""Generation of one batch: the engine's calls for prompts that are ready, in one turn or several.

An error of the whole batch is the error of each of its samples. An interrupted batch keeps the samples that
had finished.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from actograph.contract.errors import ActographError, CaptureFailed, JobEnded, SampleTimeout
from actograph.contract.plans.batch_memory import SCORED_PIECE_BYTES, CaptureNeed, capture_need
from actograph.contract.specs import SamplingSpec
from actograph.settings import Settings
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
from worker.sample.recording import Provenance, UnitRecorder
from worker.sample.segments import Markup
from worker.sample.steering import UNSTEERED, Steering
from worker.sample.turn_loop import TurnLoop

logger = logging.getLogger(__name__)

#: assumed length of a prompt before any is known
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


class BatchGenerator:
    """Generates the batches of one job during one slice."""

    def __init__(
        self,
        *,
        settings: Settings,
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
            provenance: None if the job captures nothing.
            markup: segment markers; None uses the tokenizer's defaults.
            time_limit: seconds for one sample.
            live: destination of the text of samples that are followed while they run.
        """
        self._time_limit = time_limit
        self._live = live
        #: bytes before and after the last batch, for the worker's report
        self.batch_memory: dict[str, int] = {}
        self._steering = steering
        self._markup = markup or Markup(engine.model.tokenizer)
        self._engine = engine
        self.runner = runner
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
        """Number of samples for the next batch, by the memory plan and the settings.

        Prompts are known only once they are claimed, so the longest one so far stands for them.
        """
        if self.runner.sampling is None:
            return self._reader.plan(prompt_tokens=self._longest_prompt).batch_size
        return self._engine.plan_batch_size(
            self.provenance.hooks if self.provenance else (),
            prompt_tokens=self._longest_prompt,
            max_tokens=self.runner.sampling.max_tokens,
            capture_of=self._capture_of,
            options=self._options,
            scored=SCORED_PIECE_BYTES if self.runner.may_score else 0,
            most=self._most,
        )

    def _capture_of(self, prompt_tokens: int) -> CaptureNeed:
        """Memory that capturing takes for a prompt of this length, counted as the API counts it."""
        if self.provenance is None:
            return CaptureNeed()
        return capture_need(
            self._engine.structure,
            self.provenance.hooks,
            self.provenance.capture,
            prompt_tokens=prompt_tokens,
        )

    @property
    def context_length(self) -> int:
        return self._engine.structure.context_length

    def note_prompt(self, tokens: int) -> None:
        """Remember the length of a prompt for the size of the next batch."""
        self._longest_prompt = max(self._longest_prompt, tokens)

    def run(
        self, runnable: Sequence[Outcome], recorder: UnitRecorder | None, keeper: RunningLeases
    ) -> list[Outcome]:
        """Outcomes of prompted samples, each with its generation or an error.

        Raises:
            Exception: the device is lost (`is_device_lost`); only a new process helps.
        """
        devices = self._engine.model.devices
        before, started = memory_snapshot(devices), time.monotonic()
        try:
            ran = (
                self._turns(recorder, keeper).run(runnable)
                if self.runner.takes_turns
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
        for sampling, group in by_sampling(dict(outcomes), lambda o: o.lease, self.runner):
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
        with LiveText(self._live, leases, self.runner.live_text, sampling.stop) as live:
            return self._continue(
                requests, sampling, sink, keeper, should_drop=dropping, on_batch=live.on_batch
            )

    def _turns(self, recorder: UnitRecorder | None, keeper: RunningLeases) -> TurnLoop:
        origin = self.provenance

        def generate(
            requests: Sequence[GenerationRequest], sampling: SamplingSpec, sink: RowSink | None
        ) -> list[Generation]:
            self.note_prompt(max(len(request.prompt_ids) for request in requests))
            return self._continue(requests, sampling, sink, keeper)

        return TurnLoop(
            runner=self.runner,
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


@dataclass(frozen=True)
class _BatchSink:
    """Hands the rows of one batch on, under the samples' places in the unit."""

    recorder: UnitRecorder
    places: Sequence[int]

    def write(self, index: int, rows: Mapping[str, RowChunk]) -> None:
        self.recorder.write(self.places[index], rows)

    def reset(self, index: int) -> None:
        self.recorder.reset(self.places[index])


def _noted(generation: Generation, outcome: Outcome) -> Generation:
    """A text that was cut to the context ended by its length."""
    if outcome.prompt is None or outcome.prompt.truncated_from is None or generation.error is not None:
        return generation
    return replace(generation, finish_reason="length")


def _as_error(error: BaseException) -> ActographError:
    if isinstance(error, ActographError):
        return error
    return CaptureFailed(f"{type(error).__name__}: {error}")
