"""The engine of one model: generation with capture, and what prefill shares with it."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from actograph.contract.errors import InvalidRequest
from actograph.contract.layer_order import LayerOrder
from actograph.contract.prefill_plan import PrefillPlan, prefill_plan
from actograph.contract.resources import ModelStructure
from actograph.contract.specs import CaptureSpec, Dtype, SamplingSpec
from worker.engine import ladder, memory, tracing
from worker.engine.generation_inputs import generation_inputs
from worker.engine.hook_reads import HookReads
from worker.engine.interventions import Editor
from worker.engine.learned_limit import LearnedLimit
from worker.engine.locations import place_of
from worker.engine.logprobs import LogprobRecorder
from worker.engine.model import LoadedModel
from worker.engine.prefill import Prefill
from worker.engine.request_checks import check_requests
from worker.engine.requests import (
    BufferOptions,
    Generation,
    GenerationRequest,
    Positions,
    RowShaping,
    RowSink,
)
from worker.engine.row_writer import Point
from worker.engine.rows import RowStream
from worker.engine.step_reader import StepReader
from worker.engine.stopping import RowTracker, StopStrings
from worker.engine.structure import discover

#: the requests of a batch, and the growing list of each one's tokens
OnBatch = Callable[[Sequence[int], Sequence[Sequence[int]]], None]
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
        self._lock = threading.Lock()

    def plan_batch_size(
        self,
        hooks: Sequence[str],
        *,
        prompt_tokens: int,
        max_tokens: int,
        capture_of: memory.CaptureOf | None = None,
        options: BufferOptions = _NO_OPTIONS,
    ) -> int:
        """Samples to run at once, from free memory and from what earlier batches met.

        Args:
            prompt_tokens: of the longest prompt.
            capture_of: what capturing takes; None counts every row of `hooks` as it is computed.
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
    ) -> PrefillPlan:
        """Texts to read at once and layers whose rows to hold at once: see `contract.prefill_plan`."""
        budget = memory.budget_of(self.model, options.host_buffer_bytes)
        most = self.prefill_limit.most_samples(prompt_tokens)
        return prefill_plan(
            self.structure,
            hooks,
            capture,
            budget if most is None else replace(budget, cap=min(budget.cap, most)),
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
        apply before temperature, top-k and top-p, as in transformers.
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
        plan = _Pass(
            requests=requests,
            sampling=sampling,
            reads=self._reads.of(hooks, [edit for request in requests for edit in request.edits]),
            positions=positions,
            dtype=_DTYPES.get(dtype),
            shaping=shaping,
            sink=sink,
            should_stop=should_stop,
            on_step=on_step,
            options=options,
            time_limit=time_limit,
            should_drop=should_drop,
            on_batch=on_batch,
        )
        done: dict[int, Generation] = {}
        sparing = ladder.sparing(options)
        capture_of = capture_of or memory.every_row(self.structure, hooks)

        def need(batch: Sequence[int]) -> int:
            longest = max(len(requests[i].prompt_ids) for i in batch)
            return memory.batch_need(
                self.model,
                self.structure,
                capture_of(longest),
                prompt_tokens=longest,
                max_tokens=max(plan.limit(i) for i in batch),
                samples=len(batch),
            )

        def reset(batch: Sequence[int]) -> None:
            if sink is not None and hooks:
                for index in batch:
                    sink.reset(index)

        def attempt(batch: Sequence[int], spare: int) -> None:
            memory.reset_peak(self.model.devices)
            try:
                done.update(self._run(replace(plan, options=sparing) if spare else plan, batch))
            except Exception as error:
                if memory.is_out_of_memory(error):
                    self.limit.failed(need(batch), len(batch))
                raise
            if all(done[i].finish_reason != "cancelled" for i in batch):
                self.limit.passed(need(batch))

        def give_up(index: int, seen: Mapping[str, int]) -> None:
            request = requests[index]
            what = f"a prompt of {len(request.prompt_ids)} tokens with max_tokens {plan.limit(index)}"
            done[index] = _failed(request, memory.out_of_memory(self.model.devices, what, seen))

        with self._lock:
            ladder.descend(
                range(len(requests)),
                attempt=attempt,
                reset=reset,
                observe=lambda: memory.memory_snapshot(self.model.devices),
                give_up=give_up,
                spares=int(bool(hooks) and sparing != options),
            )
        return [done[i] for i in range(len(requests))]

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
            return job.run()

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

    def _run(self, plan: "_Pass", batch: Sequence[int]) -> dict[int, Generation]:
        """One batch, from padding to the last row in the sink."""
        chosen = [plan.requests[i] for i in batch]
        sampling, stop = plan.sampling, plan.sampling.stop
        lengths = [len(r.prompt_ids) for r in chosen]
        limits = [plan.limit(i) for i in batch]
        tracker = RowTracker(
            rows=len(chosen),
            max_tokens=max(limits),
            limits=limits,
            eos_ids=self.model.eos_token_ids,
            stops=StopStrings(stop, self.model.tokenizer) if stop else None,
            should_stop=plan.should_stop,
            on_step=plan.on_step,
            device=self.model.device,
            time_limit=plan.time_limit,
            should_drop=plan.drops(batch),
        )
        if plan.on_batch is not None:
            plan.on_batch(batch, tracker.tokens)
        logprobs = LogprobRecorder(chosen) if any(r.top_logprobs is not None for r in chosen) else None
        inputs = generation_inputs(self.model, chosen, sampling, tracker, logprobs)
        editor = self._editor(chosen, tracker.tokens)
        if not plan.reads or plan.sink is None:
            if editor is not None:
                tracing.generate(self.model, inputs, [editor], editor.modules)
            else:
                with torch.inference_mode():
                    self.model.lm.generate(**inputs)
            return _generations(plan.requests, batch, tracker, _steering_errors(editor, tracker), logprobs)
        stream = RowStream(
            [point for _, point in plan.reads],
            prompt_lengths=lengths,
            padded_length=max(lengths),
            indices=batch,
            positions=plan.positions,
            dtype=plan.dtype,
            shaping=plan.shaping,
            prompt_ids=[r.prompt_ids for r in chosen],
            generated_ids=tracker.tokens,
            choosers=[r.chooser for r in chosen] if any(r.chooser for r in chosen) else (),
            options=plan.options,
            sink=plan.sink,
            ended_at=tracker.ended_at,
            should_stop=plan.should_stop,
        )
        try:
            locations = [location for location, _ in plan.reads]
            reader = StepReader(
                self.model.lm, locations, stream, batch=len(chosen), flat=self._discovery.flat
            )
            modules = [place_of(location).path for location in locations]
            if editor is None:
                tracing.generate(self.model, inputs, [reader], modules)
            else:
                tracing.generate(self.model, inputs, [editor, reader], [*editor.modules, *modules])
            if tracker.cancelled or not stream.finish([len(t) for t in tracker.tokens]):
                tracker.reasons[:] = ["cancelled"] * len(chosen)  # no sample's rows are complete
            errors = {**stream.errors, **_steering_errors(editor, tracker)}
            return _generations(plan.requests, batch, tracker, errors, logprobs)
        finally:
            stream.close()

    def _editor(
        self, requests: Sequence[GenerationRequest], generated_ids: Sequence[Sequence[int]]
    ) -> Editor | None:
        """What makes the requests' edits; None where nothing is to be changed."""
        edits = [[edit for edit in request.edits if not edit.changes_nothing] for request in requests]
        if not any(edits):
            return None
        return Editor(
            self.model.lm,
            edits,
            location_of={edit.hook: self._reads.edited_at(edit.hook) for own in edits for edit in own},
            flat=self._discovery.flat,
            prompt_ids=[request.prompt_ids for request in requests],
            generated_ids=generated_ids,
            head=self._head,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pass:
    """What all batches of one call to `generate` have in common."""

    requests: Sequence[GenerationRequest]
    sampling: SamplingSpec
    reads: Sequence[tuple[str, Point]]  # in execution order
    positions: Positions
    dtype: torch.dtype | None
    shaping: RowShaping
    sink: RowSink | None
    should_stop: Callable[[], bool]
    on_step: Callable[[int], None] | None
    options: BufferOptions
    time_limit: float | None
    should_drop: Callable[[int], bool] | None
    on_batch: OnBatch | None

    def limit(self, index: int) -> int:
        """Most tokens of a request."""
        return self.requests[index].max_tokens or self.sampling.max_tokens

    def drops(self, batch: Sequence[int]) -> Callable[[int], bool] | None:
        """`should_drop` by row of a batch."""
        asked = self.should_drop
        return None if asked is None else lambda row: asked(batch[row])


def _steering_errors(editor: Editor | None, tracker: RowTracker) -> Mapping[int, BaseException]:
    return {} if editor is None else editor.errors([len(tokens) for tokens in tracker.tokens])


def _generations(
    requests: Sequence[GenerationRequest],
    batch: Sequence[int],
    tracker: RowTracker,
    errors: Mapping[int, BaseException],
    logprobs: LogprobRecorder | None,
) -> dict[int, Generation]:
    """Request index -> what came of it."""
    found = {}
    for row, index in enumerate(batch):
        request = requests[index]
        found[index] = Generation(
            key=request.key,
            prompt_ids=request.prompt_ids,
            generated_ids=tuple(tracker.tokens[row]),
            finish_reason=tracker.reasons[row],
            error=errors.get(row),
            logprobs=None if logprobs is None else logprobs.of(row, len(tracker.tokens[row])),
        )
    return found


def _failed(request: GenerationRequest, error: BaseException) -> Generation:
    return Generation(
        key=request.key, prompt_ids=request.prompt_ids, generated_ids=(), finish_reason="error", error=error
    )
