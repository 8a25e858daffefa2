"""The engine's calls for the batches of one job: how many samples, and one turn of each."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Protocol

from actograph.contract.errors import ActographError, CaptureFailed, JobEnded, SampleTimeout
from actograph.contract.specs import CaptureSpec, SamplingSpec
from actograph.plans import SCORED_PIECE_BYTES, CaptureNeed, capture_need
from actograph.settings import Settings
from storage.broker.live_text import LiveTextWriter
from storage.queue.leases import LeasedSample
from worker.engine.engine import Engine
from worker.engine.model.device_errors import is_device_lost
from worker.engine.requests import BufferOptions, Generation, GenerationRequest, RowShaping, RowSink
from worker.runners.runner import Runner
from worker.sample.live_text import LiveText
from worker.sample.outcome import Interrupted
from worker.sample.provenance import Provenance
from worker.sample.segments import Markup
from worker.sample.steering import UNSTEERED, Steering

#: assumed length of a prompt before any is known
FIRST_GUESS_TOKENS = 512


class RunningLeases(Protocol):
    """Leases of the running batch, see `worker.drain.lease`."""

    def progress(self, _step: int = 0) -> None:
        """Note a decode step, a scored sample or a stored piece of a file. A silent batch is ended."""

    def should_stop(self) -> bool:
        """Whether the batch ends now: all its leases are lost, or the worker stops."""
        ...

    def has_lost(self, lease: LeasedSample) -> bool:
        """Whether this sample is the worker's no more: its job has ended, or its lease is lost."""
        ...


class BatchGenerator:
    """Runs the batches of one job, or of chats that share a batch, on the engine."""

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
            live: writer of live text; None if nobody follows the samples.
        """
        self.engine = engine
        self.runner = runner
        self.provenance = provenance
        self.steering = steering
        self.markup = markup or Markup(engine.model.tokenizer)
        self.context_length = engine.structure.context_length
        self._time_limit = time_limit
        self._live = live
        self._most = settings.batch_size
        self._longest_prompt = min(FIRST_GUESS_TOKENS, self.context_length)
        self._hooks = provenance.hooks if provenance else ()
        self._capture = provenance.capture if provenance else CaptureSpec()
        self._options = BufferOptions(
            host_buffer_bytes=settings.host_buffer_bytes, shard_bytes=settings.shard_bytes
        )

    def size(self) -> int:
        """Number of samples for the next batch, by the memory plan and the settings.

        Prompts are known only after the claim, so the longest one so far stands for them.
        """
        if self.runner.sampling is None:
            return self.engine.plan_prefill(
                self._hooks,
                self._capture,
                prompt_tokens=self._longest_prompt,
                options=self._options,
                most=self._most,
            )
        return self.engine.plan_batch_size(
            self._hooks,
            prompt_tokens=self._longest_prompt,
            max_tokens=self.runner.sampling.max_tokens,
            capture_of=self._capture_of,
            options=self._options,
            scored=SCORED_PIECE_BYTES if self.runner.may_score else 0,
            most=self._most,
        )

    def _capture_of(self, prompt_tokens: int) -> CaptureNeed:
        """Memory for capturing with a prompt of this length, counted as in the API."""
        if self.provenance is None:
            return CaptureNeed()
        return capture_need(self.engine.structure, self._hooks, self._capture, prompt_tokens=prompt_tokens)

    def note_prompt(self, tokens: int) -> None:
        """Remember the length of a prompt for the size of the next batch."""
        self._longest_prompt = max(self._longest_prompt, tokens)

    def run(
        self,
        leases: Sequence[LeasedSample],
        requests: Sequence[GenerationRequest],
        sampling: SamplingSpec | None,
        sink: RowSink | None,
        keeper: RunningLeases,
    ) -> list[Generation]:
        """Run one turn of these samples; without sampling, read the prompts only."""
        if keeper.should_stop():
            return [_empty(request, cancelled=True) for request in requests]
        self.note_prompt(max(len(request.prompt_ids) for request in requests))
        if sampling is None:
            return self._read(requests, sink, keeper)

        def drop(index: int) -> bool:
            return keeper.has_lost(leases[index])

        live = None
        if self._live is not None:
            live = LiveText(self._live, leases, self.engine.model.tokenizer, sampling.stop)
        origin = self.provenance
        with nullcontext() if live is None else live:
            return self.engine.generate(
                requests,
                sampling=sampling,
                hooks=self._hooks,
                positions=origin.positions if origin else "all",
                dtype=self._capture.dtype,
                shaping=origin.shaping if origin else RowShaping(),
                sink=sink,
                should_stop=keeper.should_stop,
                on_step=keeper.progress,
                capture_of=self._capture_of,
                options=self._options,
                time_limit=self._time_limit,
                should_drop=drop if len(leases) > 1 else None,
                on_batch=None if live is None else live.on_batch,
            )

    def _read(
        self, requests: Sequence[GenerationRequest], sink: RowSink | None, keeper: RunningLeases
    ) -> list[Generation]:
        """A generation without tokens for each request, with finish reason "stop" if all went well.

        Rows and log probabilities need two passes, since a pass for rows ends after its last hook.
        """
        read = [_empty(request) for request in requests]
        if self.provenance is not None and sink is not None:
            read = self.engine.prefill(
                requests,
                hooks=self._hooks,
                sink=sink,
                positions=self.provenance.positions,
                dtype=self._capture.dtype,
                shaping=self.provenance.shaping,
                should_stop=keeper.should_stop,
                on_step=keeper.progress,
                options=self._options,
            )
        to_score = [
            place
            for place, request in enumerate(requests)
            if request.score_prompt and read[place].finish_reason == "stop" and read[place].error is None
        ]
        scored = self.engine.score([requests[place] for place in to_score], should_stop=keeper.should_stop)
        for place, found in zip(to_score, scored, strict=True):
            read[place] = found
        return read

    def error_of(self, generation: Generation) -> ActographError | None:
        """The sample's error; None if the generation is a result.

        Raises:
            Exception: the device is lost (`is_device_lost`); only a new process helps.
        """
        if generation.error is not None:
            if is_device_lost(generation.error):
                raise generation.error
            return Interrupted() if generation.finish_reason == "cancelled" else as_error(generation.error)
        match generation.finish_reason:
            case "cancelled":
                return Interrupted()
            case "dropped":
                return JobEnded()
            case "timeout":
                return SampleTimeout(
                    f"the sample was decoded for more than {self._time_limit:g} s (sample_timeout_seconds); "
                    f"it had {len(generation.generated_ids)} tokens then"
                )
        return None


def _empty(request: GenerationRequest, *, cancelled: bool = False) -> Generation:
    """A generation without tokens."""
    return Generation(
        key=request.key,
        prompt_ids=request.prompt_ids,
        generated_ids=(),
        finish_reason="cancelled" if cancelled else "stop",
    )


def as_error(error: BaseException) -> ActographError:
    """Any error as a sample's error."""
    if isinstance(error, ActographError):
        return error
    return CaptureFailed(f"{type(error).__name__}: {error}")
