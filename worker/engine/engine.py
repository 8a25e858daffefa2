"""The engine of one model: its public methods, and one call at a time."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from actograph.contract.errors import ContextLengthExceeded, InvalidRequest
from actograph.contract.interventions import check_width
from actograph.contract.job_specs import check_sampling
from actograph.contract.models import ModelStructure
from actograph.contract.row_selection import NamedPositions
from actograph.contract.specs import CaptureSpec, Dtype, SamplingSpec
from actograph.plans import batch_size, capture_need
from worker.engine.batches import BatchJob, Capture
from worker.engine.forwards import Forwards
from worker.engine.model import memory
from worker.engine.model.loaded import LoadedModel
from worker.engine.prefill.prefill import Prefill
from worker.engine.requests import (
    BufferOptions,
    Generation,
    GenerationRequest,
    RowShaping,
    RowSink,
)
from worker.engine.runs import Control, Results, RunOptions, RunStatistics, Sink, Source
from worker.engine.stream.loop import Loop
from worker.engine.structure.structure import discover
from worker.engine.traced.generate import Generate, OnBatch
from worker.engine.traced.score import Score

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_NO_OPTIONS = BufferOptions()
_NO_RUN_OPTIONS = RunOptions()
_AS_COMPUTED = RowShaping()


def _never() -> bool:
    return False


class Engine:
    """Runs one model: prompts in, continuations and activation rows out.

    One thread at a time; a second caller waits.

    Raises:
        ModelRefused: (constructor) the model's structure cannot be found or verified.
    """

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self._hooks = discover(model)
        self.structure: ModelStructure = self._hooks.structure
        self.limit = memory.LearnedLimit()  # for generation, in bytes
        self.prefill_limit = memory.LearnedLimit()  # for prefill and scoring, in padded tokens
        self.forwards = Forwards(self._hooks)
        self._lock = threading.Lock()

    def plan_batch_size(
        self,
        hooks: Sequence[str],
        *,
        prompt_tokens: int,
        max_tokens: int,
        capture_of: memory.CaptureOf | None = None,
        options: BufferOptions = _NO_OPTIONS,
        scored: int = 0,
        most: int = 0,
    ) -> int:
        """Samples to run at once, by free memory and by the sizes of earlier batches.

        Args:
            prompt_tokens: of the longest prompt.
            capture_of: memory that capturing takes; None counts every row of `hooks` as it is computed.
            scored: bytes for scoring prompts, whatever the size of the batch.
            most: samples; 0: the default of the device.
        """
        capture_of = capture_of or memory.every_row(self.structure, hooks)
        return memory.plan_batch_size(
            self.model,
            self.structure,
            capture_of(prompt_tokens),
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            host_buffer_bytes=options.host_buffer_bytes,
            limit=self.limit,
            scored=scored,
            most=most,
        )

    def plan_prefill(
        self,
        hooks: Sequence[str],
        capture: CaptureSpec,
        *,
        prompt_tokens: int,
        options: BufferOptions = _NO_OPTIONS,
        most: int = 0,
    ) -> int:
        """Texts to read at once, at least 1."""
        budget = memory.budget_of(self.model, options.host_buffer_bytes, most)
        learned = self.prefill_limit.most_samples(prompt_tokens)
        if learned is not None:
            budget = replace(budget, cap=min(budget.cap, learned))
        need = capture_need(self.structure, hooks, capture, prompt_tokens=prompt_tokens, generated_tokens=0)
        return batch_size(self.structure, 0, need, budget, prompt_tokens=prompt_tokens, max_tokens=0)

    def generate(
        self,
        requests: Sequence[GenerationRequest],
        *,
        sampling: SamplingSpec,
        hooks: Sequence[str] = (),
        positions: NamedPositions = "all",
        dtype: Dtype = "model",
        shaping: RowShaping = _AS_COMPUTED,
        sink: RowSink | None = None,
        should_stop: Callable[[], bool] = _never,
        on_step: Callable[[int], None] | None = None,
        capture_of: memory.CaptureOf | None = None,
        options: BufferOptions = _NO_OPTIONS,
        time_limit: float | None = None,
        should_drop: Callable[[int], bool] | None = None,
        on_batch: OnBatch | None = None,
    ) -> list[Generation]:
        """Continue every request in one batch; `sink` takes the rows of `hooks` meanwhile.

        Tokens and rows of a request do not depend on the rest of its batch. See `batches` for what happens
        when memory runs out. `sampling.seed` is not used: each request has its own. The checkpoint's own
        logits processors apply first, then logit bias and penalties, then temperature, top-k and top-p.

        Args:
            hooks: canonical names or module locations, as `actograph.contract.hooks.expand` returns them.
            sink: required with hooks.
            should_stop: polled between decode steps; True cancels the batch.
            on_step: called with the number of tokens generated so far (a progress heartbeat).
            capture_of: see `plan_batch_size`; the engine learns batch sizes by it.
            time_limit: seconds of decoding after which a request ends as "timeout".
            should_drop: polled between decode steps for each request; True ends this request alone.
            on_batch: called before each batch runs, with its requests and the lists that take their tokens.

        Raises:
            InvalidRequest, ContextLengthExceeded, UnknownHook: before anything runs.
            CaptureFailed: the rows of the batch do not have the verified structure.
        """

        def job() -> Generate:
            check_sampling(sampling, self.structure)
            return Generate(
                hooks=self._hooks,
                requests=requests,
                limit=self.limit,
                should_stop=should_stop,
                capture=self._capture(
                    requests, hooks, sink, positions=positions, dtype=dtype, shaping=shaping, options=options
                ),
                sampling=sampling,
                on_step=on_step,
                capture_of=capture_of or memory.every_row(self.structure, hooks),
                time_limit=time_limit,
                should_drop=should_drop,
                on_batch=on_batch,
            )

        return self._run(requests, sampling.max_tokens, job)

    def prefill(
        self,
        requests: Sequence[GenerationRequest],
        *,
        hooks: Sequence[str],
        sink: RowSink,
        positions: NamedPositions = "all",
        dtype: Dtype = "model",
        shaping: RowShaping = _AS_COMPUTED,
        should_stop: Callable[[], bool] = _never,
        on_step: Callable[[int], None] | None = None,
        options: BufferOptions = _NO_OPTIONS,
    ) -> list[Generation]:
        """Read every text in one batch; `sink` takes the rows of `hooks` meanwhile.

        A text of P tokens has P rows, also of `logits`, which are computed a few tokens at a time. The
        forward pass ends after the last hook and keeps no key-value cache. Seeds are not used.

        Args:
            should_stop: polled between hooks; True cancels the batch.
            on_step: called with the number of hooks read so far (a progress heartbeat).

        Returns:
            A `Generation` without generated ids for each request, "stop" if all went well.

        Raises:
            InvalidRequest, ContextLengthExceeded, UnknownHook: before anything runs.
            CaptureFailed: the rows of the batch do not have the verified structure.
        """
        if requests and not hooks:
            raise ValueError("prefill needs hooks")
        if requests and positions == "generated":
            raise InvalidRequest(
                "prefill generates nothing, so it has no generated tokens", param="positions"
            )
        named: NamedPositions = "last_prompt" if positions == "last" else positions

        def job() -> Prefill:
            capture = self._capture(
                requests, hooks, sink, positions=named, dtype=dtype, shaping=shaping, options=options
            )
            assert capture is not None  # there are hooks
            return Prefill(
                hooks=self._hooks,
                requests=requests,
                limit=self.prefill_limit,
                should_stop=should_stop,
                capture=capture,
                on_step=on_step,
            )

        return self._run(requests, 0, job)

    def score(
        self, requests: Sequence[GenerationRequest], *, should_stop: Callable[[], bool] = _never
    ) -> list[Generation]:
        """Log probabilities of every text's own tokens, with edits; nothing is generated or captured.

        The logits of a few tokens are held at once, and no key-value cache.

        Args:
            requests: each with `score_prompt`.

        Raises:
            InvalidRequest, ContextLengthExceeded, UnknownHook: before anything runs.
        """
        return self._run(
            requests,
            0,
            lambda: Score(
                hooks=self._hooks, requests=requests, limit=self.prefill_limit, should_stop=should_stop
            ),
        )

    def run(
        self,
        *,
        source: Source,
        control: Control,
        results: Results,
        sink: Sink | None = None,
        options: RunOptions = _NO_RUN_OPTIONS,
    ) -> RunStatistics:
        """Run requests from `source` until it is exhausted and all have ended, or `control` stops them.

        Tokens and rows of a request do not depend on the others. See `runs` for what may fail.

        Raises:
            Exception: of `results`, or what makes every pass fail; all requests end with it.
        """
        with self._lock:
            forward, rows = self.forwards.open(options)
            loop = Loop(
                forward,
                rows,
                source=source,
                control=control,
                results=results,
                sink=sink,
                most=self.forwards.slots(options),
                urgent=options.urgent,
                shard_bytes=options.shard_bytes,
            )
            return loop.run()

    def width_of(self, hook: str) -> int:
        """Numbers per token at a hook or module location. Raises UnknownHook."""
        return self._hooks.width_of(hook)

    def _run(
        self, requests: Sequence[GenerationRequest], max_tokens: int, job: Callable[[], BatchJob]
    ) -> list[Generation]:
        """Check the requests, then run the job while no other one runs."""
        if not requests:
            return []
        for request in requests:
            self._check(request, max_tokens)
        made = job()
        with self._lock:
            return made.run(self._batches(requests))

    def _batches(self, requests: Sequence[GenerationRequest]) -> list[list[int]]:
        """Requests that may share a batch: all, or those of one length if padding changes the numbers."""
        if self.structure.ragged_batches:
            return [list(range(len(requests)))]
        lengths: dict[int, list[int]] = {}
        for index, request in enumerate(requests):
            lengths.setdefault(len(request.prompt_ids), []).append(index)
        return list(lengths.values())

    def _capture(
        self,
        requests: Sequence[GenerationRequest],
        hooks: Sequence[str],
        sink: RowSink | None,
        *,
        positions: NamedPositions,
        dtype: Dtype,
        shaping: RowShaping,
        options: BufferOptions,
    ) -> Capture | None:
        """Capture of these hooks; None without hooks."""
        reads = self._hooks.reads(hooks, [edit for request in requests for edit in request.edits])
        if not reads:
            return None
        if sink is None:
            raise ValueError("hooks need a sink")
        return Capture(
            reads=reads,
            positions=positions,
            dtype=_DTYPES.get(dtype),
            shaping=shaping,
            sink=sink,
            options=options,
        )

    def _check(self, request: GenerationRequest, max_tokens: int) -> None:
        """Refuse a request that the model cannot run.

        Args:
            max_tokens: the sampling's; 0 if texts are only read.

        Raises:
            InvalidRequest, ContextLengthExceeded, UnknownHook: the request is at fault.
        """
        context, vocabulary = self.structure.context_length, self.structure.vocab_size
        prompt, most = len(request.prompt_ids), request.max_tokens or max_tokens
        if not prompt:
            raise InvalidRequest(f"{request.key}: the prompt has no tokens", param="prompt")
        if min(request.prompt_ids) < 0 or max(request.prompt_ids) >= vocabulary:
            raise InvalidRequest(
                f"{request.key}: token ids must be from 0 to {vocabulary - 1}", param="prompt"
            )
        if not max_tokens and prompt > context:
            raise ContextLengthExceeded(
                f"{request.key}: the text has {prompt} tokens; the model's context is {context}",
                param="prompt",
            )
        if prompt + most > context:
            raise ContextLengthExceeded(
                f"{request.key}: prompt ({prompt} tokens) and max_tokens ({most}) need "
                f"{prompt + most} tokens; the model's context is {context}",
                param="max_tokens",
            )
        for edit in request.edits:
            if edit.vector is not None:
                check_width(edit.hook, len(edit.vector), self.width_of(edit.hook), "interventions")
