"""The engine of one model: what may be asked of it, and that one thing runs at a time."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from actograph.contract.errors import InvalidRequest
from actograph.contract.plans.layer_order import LayerOrder
from actograph.contract.plans.prefill_plan import PrefillPlan, prefill_plan
from actograph.contract.resources import ModelStructure
from actograph.contract.specs import CaptureSpec, Dtype, SamplingSpec
from actograph.contract.structure_checks import check_sampling
from worker.engine.model import memory
from worker.engine.model.learned_limit import LearnedLimit
from worker.engine.model.loaded import LoadedModel
from worker.engine.prefill.prefill import Prefill
from worker.engine.requests import (
    BufferOptions,
    Generation,
    GenerationRequest,
    Positions,
    RowShaping,
    RowSink,
)
from worker.engine.structure.structure import discover
from worker.engine.traced.generate import Generate, OnBatch
from worker.engine.traced.hook_reads import HookReads
from worker.engine.traced.request_checks import check_requests
from worker.engine.traced.score import Score

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_NO_OPTIONS = BufferOptions()
_AS_COMPUTED = RowShaping()


def _never() -> bool:
    return False


class Engine:
    """Runs one model: prompts in, continuations and activation rows out.

    One thread at a time; a second caller waits. `structure` is proved when the engine is made.

    Raises:
        ModelRefused: (constructor) the model's structure cannot be found or proved.
    """

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self._discovery = discover(model)
        self.structure: ModelStructure = self._discovery.structure
        self.limit = LearnedLimit()  # of batches that generate
        self.prefill_limit = LearnedLimit()  # of texts that are only read, in padded tokens
        self._reads = HookReads(self._discovery)
        self._layers = LayerOrder(self.structure)
        hf: Any = self.model.hf
        head = hf.get_output_embeddings()
        path = next(name for name, module in hf.named_modules() if module is head)
        self._head = f"{path}.output"
        self._head_is_logits = "logits" in self.structure.hooks
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
        """Samples to run at once, from free memory and from the sizes of earlier batches.

        Args:
            prompt_tokens: of the longest prompt.
            capture_of: memory that capturing takes; None counts every row of `hooks` as it is computed.
            scored: bytes that scoring prompts takes, whatever the size of the batch.
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
        samples: int | None = None,
        layers_per_pass: int | None = None,
        options: BufferOptions = _NO_OPTIONS,
        most: int = 0,
    ) -> PrefillPlan:
        """Texts to read at once and layers whose rows to hold at once: see `contract.prefill_plan`."""
        budget = memory.budget_of(self.model, options.host_buffer_bytes, most)
        learned = self.prefill_limit.most_samples(prompt_tokens)
        return prefill_plan(
            self.structure,
            hooks,
            capture,
            budget if learned is None else replace(budget, cap=min(budget.cap, learned)),
            prompt_tokens=prompt_tokens,
            samples=samples,
            layers_per_pass=layers_per_pass,
        )

    def generate(
        self,
        requests: Sequence[GenerationRequest],
        *,
        sampling: SamplingSpec,
        hooks: Sequence[str] = (),
        positions: Positions = "all",
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
        """Continue every request in one batch; rows of `hooks` go to `sink` on the way.

        Tokens and rows of a request do not depend on the others in the batch. Where memory runs
        out the batch is halved and run again (`sink.reset`), a batch of one with no rows held
        back; a request that does not fit even so comes back with an `error`. `sampling.seed` is
        not used: each request has its own.
        Logits processors that the checkpoint's generation config asks for (a repetition penalty)
        apply first, then logit bias and penalties, then temperature, top-k and top-p.
        A request's edits are made in the same pass; rows that are read show them.

        Args:
            hooks: canonical names or module locations, as `actograph.contract.hooks.expand`
                gives them.
            sink: required with hooks.
            should_stop: polled between decode steps; True cancels the batch.
            on_step: told the number of tokens generated so far (a progress heartbeat).
            time_limit: seconds for which a request may be decoded; one that takes longer ends as "timeout".
            capture_of: as `plan_batch_size` has it; what fits is remembered by it.
            should_drop: polled between decode steps for each request; True ends it and leaves the others.
            on_batch: told the requests of each batch before it is run, and the lists to which their tokens
                are added while it runs; again where a batch is run again.

        Raises:
            InvalidRequest, ContextLengthExceeded, UnknownHook: before anything is run.
            CaptureFailed: the rows of the batch could not be read as the structure promised.
        """
        if not requests:
            return []
        self._check(requests, sampling.max_tokens, hooks, sink)
        check_sampling(sampling, self.structure)
        job = Generate(
            model=self.model,
            structure=self.structure,
            flat=self._discovery.flat,
            edited_at=self._reads.edited_at,
            head=self._head,
            head_is_logits=self._head_is_logits,
            requests=requests,
            sampling=sampling,
            reads=self._reads.of(hooks, [edit for request in requests for edit in request.edits]),
            positions=positions,
            dtype=_DTYPES.get(dtype),
            shaping=shaping,
            sink=sink,
            should_stop=should_stop,
            on_step=on_step,
            capture_of=capture_of or memory.every_row(self.structure, hooks),
            options=options,
            time_limit=time_limit,
            should_drop=should_drop,
            on_batch=on_batch,
            learned=self.limit,
        )
        with self._lock:
            return job.run(self._batches(requests))

    def prefill(
        self,
        requests: Sequence[GenerationRequest],
        *,
        hooks: Sequence[str],
        sink: RowSink,
        positions: Positions = "all",
        dtype: Dtype = "model",
        shaping: RowShaping = _AS_COMPUTED,
        should_stop: Callable[[], bool] = _never,
        on_layer: Callable[[int], None] | None = None,
        layers_per_pass: int | None = None,
        options: BufferOptions = _NO_OPTIONS,
    ) -> list[Generation]:
        """Read every text in one batch, generate nothing; rows of `hooks` go to `sink` on the way.

        A text of P tokens has P rows, `logits` included, which are computed a few tokens at a time.
        The forward ends after the last hook; no key-value cache is kept. Where memory runs out the
        batch is halved, then the layers per pass of a batch of one; a text that does not fit even
        so comes back with an `error`. Seeds are not used.

        Args:
            should_stop: polled between layers; True cancels the batch.
            on_layer: told each layer that is reached (a progress heartbeat).
            layers_per_pass: layers whose rows are held at once before they go to the sink; None is all.

        Returns:
            Per request a `Generation` without generated ids, "stop" where all went well.

        Raises:
            InvalidRequest, ContextLengthExceeded, UnknownHook: before anything is run.
            CaptureFailed: the rows of the batch could not be read as the structure promised.
        """
        if not requests:
            return []
        if not hooks:
            raise ValueError("prefill without hooks does nothing")
        if positions == "generated":
            raise InvalidRequest(
                "prefill generates nothing, so it has no generated tokens", param="positions"
            )
        self._check(requests, 0, hooks, sink)
        job = Prefill(
            model=self.model,
            flat=self._discovery.flat,
            edited_at=self._reads.edited_at,
            head=self._head,
            order=self._layers,
            requests=requests,
            reads=self._reads.of(hooks, [edit for request in requests for edit in request.edits]),
            positions="last_prompt" if positions == "last" else positions,
            dtype=_DTYPES.get(dtype),
            shaping=shaping,
            sink=sink,
            should_stop=should_stop,
            on_layer=on_layer,
            layers_per_pass=max(1, layers_per_pass or len(self.structure.module_locations)),
            limit=self.prefill_limit,
            options=options,
        )
        with self._lock:
            return job.run(self._batches(requests))

    def score(
        self, requests: Sequence[GenerationRequest], *, should_stop: Callable[[], bool] = _never
    ) -> list[Generation]:
        """The log probabilities of every text's own tokens, edits made; nothing is generated or captured.

        As `prefill`: one batch without a cache, halved where memory runs out. The logits of no more than a
        few tokens are held at once.

        Args:
            requests: each with `score_prompt`.

        Raises:
            InvalidRequest, ContextLengthExceeded, UnknownHook: before anything is run.
        """
        if not requests:
            return []
        self._check(requests, 0, (), None)
        job = Score(
            model=self.model,
            flat=self._discovery.flat,
            edited_at=self._reads.edited_at,
            head=self._head,
            head_is_logits=self._head_is_logits,
            requests=requests,
            should_stop=should_stop,
            limit=self.prefill_limit,
        )
        with self._lock:
            return job.run(self._batches(requests))

    def _batches(self, requests: Sequence[GenerationRequest]) -> list[list[int]]:
        """Requests that may share a batch: all, or those of one length where padding changes the numbers."""
        if self.structure.ragged_batches:
            return [list(range(len(requests)))]
        lengths: dict[int, list[int]] = {}
        for index, request in enumerate(requests):
            lengths.setdefault(len(request.prompt_ids), []).append(index)
        return list(lengths.values())

    def _check(
        self,
        requests: Sequence[GenerationRequest],
        max_tokens: int,
        hooks: Sequence[str],
        sink: RowSink | None,
    ) -> None:
        check_requests(self.structure, self.width_of, requests, max_tokens=max_tokens, hooks=hooks, sink=sink)

    def width_of(self, hook: str) -> int:
        """Numbers per token at a hook or module location. Raises UnknownHook."""
        return self._reads.width_of(hook)
