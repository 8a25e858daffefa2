"""Verification at load: may the streaming engine run this model?

It is refused where the config names something that slots do not have, and where a few prompts give other
tokens or rows than the traced engine.
"""

import inspect
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from actograph.contract.specs import SamplingSpec
from worker.engine.batches import Capture
from worker.engine.locations import ModelHooks
from worker.engine.model import memory
from worker.engine.model.device_errors import is_out_of_memory
from worker.engine.model.loaded import LoadedModel
from worker.engine.requests import (
    BufferOptions,
    Generation,
    GenerationRequest,
    RowChunk,
    RowShaping,
)
from worker.engine.runs import CapturePlan, RunPlan, RunRequest
from worker.engine.streaming.cache import LayerShape
from worker.engine.streaming.engine import StreamingEngine
from worker.engine.streaming.registration import UnknownAttention
from worker.engine.streaming.slots import shapes_of
from worker.engine.traced.generate import Generate

log = logging.getLogger(__name__)

#: prompts of the verification, in tokens; the longest takes several chunks
_PROMPTS, _STEP_TOKENS, _NEW_TOKENS = (21, 3, 1, 34, 8), 16, 6
#: how far rows may lie apart, as a part of a hook's largest number
_APART, _APART_HALF = 1e-4, 5e-2
#: position schemes whose frequencies follow the longest text of a batch
_LENGTH_DEPENDENT = ("dynamic", "longrope")
#: layers without keys and values of their own tokens
_OTHER_LAYERS = ("linear_attention", "chunked_attention", "mamba", "conv", "recurrent")
#: fields of a generation config that change tokens and that only `transformers.generate` applies
_GENERATION_FIELDS = (
    "bad_words_ids",
    "sequence_bias",
    "suppress_tokens",
    "begin_suppress_tokens",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "exponential_decay_length_penalty",
    "min_new_tokens",
    "watermarking_config",
    "encoder_repetition_penalty",
    "encoder_no_repeat_ngram_size",
    "renormalize_logits",
    "remove_invalid_values",
)


def refusal(model: LoadedModel) -> str | None:
    """Why the config rules streaming out; None if it does not."""
    config, hf = model.text_config, model.hf
    if len(model.devices) > 1:
        return "the model is spread over several devices"
    known = inspect.signature(type(hf).forward).parameters
    for name in ("position_ids", "logits_to_keep", "past_key_values"):
        if name not in known:
            return f"its forward takes no {name}"
    ropes = getattr(config, "rope_parameters", None) or {}
    for rope in [ropes, *(r for r in ropes.values() if isinstance(r, Mapping))]:
        if rope.get("rope_type") in _LENGTH_DEPENDENT:
            return f"its positions depend on the longest text of a batch ({rope['rope_type']})"
    others = [kind for kind in getattr(config, "layer_types", None) or () if kind in _OTHER_LAYERS]
    if others:
        return f"it has layers of the kind {others[0]}"
    generation = getattr(hf, "generation_config", None)
    fields = [name for name in _GENERATION_FIELDS if getattr(generation, name, None)]
    if fields:
        return f"its generation config sets {fields[0]}"
    return None


def verify(
    hooks: ModelHooks, lock: AbstractContextManager[Any] | None = None
) -> tuple[StreamingEngine | None, str]:
    """The streaming engine of a model, if it gives what the traced engine gives.

    A few prompts of different lengths run through both engines, with every hook captured.

    Args:
        lock: held while the streaming engine runs; the caller holds it during the verification.

    Returns:
        The engine and an empty string, or None and the reason against it.
    """
    model = hooks.model
    reason = refusal(model)
    if reason is not None:
        return None, reason
    shapes = shapes_of(model)
    if shapes is None:
        return None, "a layer keeps no keys and values of its own"
    try:
        reason = _difference(hooks, shapes)
    except UnknownAttention as error:
        return None, str(error)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        log.info("streaming fails on %s", model.name, exc_info=error)
        return None, f"it fails ({type(error).__name__}: {error})"
    return (StreamingEngine(hooks, shapes, lock), "") if reason is None else (None, reason)


def _difference(hooks: ModelHooks, shapes: Sequence[LayerShape]) -> str | None:
    """How the engines differ; None if they do not."""
    names = tuple(hooks.structure.hooks)
    sampling = SamplingSpec(max_tokens=_NEW_TOKENS)
    requests = _requests(hooks.model)
    engine = StreamingEngine(hooks, shapes)
    streamed = Recorder([RunRequest(request) for request in requests])
    plan = RunPlan(sampling=sampling, capture=CapturePlan(hooks=names))
    # three slots for five requests: they come and go in mid-run
    engine.run(
        plan,
        source=streamed,
        results=streamed,
        control=streamed,
        sink=streamed,
        most=3,
        step_tokens=_STEP_TOKENS,
    )
    traced = Recorder([])
    made = _traced(hooks, requests, sampling, names, traced)
    half = hooks.model.dtype in (torch.bfloat16, torch.float16)
    for index, expected in enumerate(made):
        got = streamed.generations[requests[index].key]
        if got.error is not None or expected.error is not None:
            return f"a prompt fails ({got.error or expected.error})"
        same = _common(got.generated_ids, expected.generated_ids)
        if not half and got.generated_ids != expected.generated_ids:
            return f"it chooses other tokens for a prompt of {len(expected.prompt_ids)} tokens"
        for hook in names:
            # in half precision rounding may choose another token: rows after it cannot be compared
            rows = _until(streamed.rows(requests[index].key, hook), got, same)
            due = _until(traced.rows(str(index), hook), expected, same)
            if not _alike(rows, due, _APART_HALF if half else _APART):
                return f"{hook} has other rows for a prompt of {len(expected.prompt_ids)} tokens"
    return None


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of equal tokens at the beginning."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _until(rows: torch.Tensor, generation: Generation, same: int) -> torch.Tensor:
    """Rows of the prompt and of the first `same` generated tokens; the last token has none."""
    later = max(0, len(generation.generated_ids) - 1 - same)
    return rows[: len(rows) - later]


def _alike(rows: torch.Tensor, due: torch.Tensor, apart: float) -> bool:
    if rows.shape != due.shape or rows.dtype != due.dtype:
        return False
    if not rows.is_floating_point() or not rows.numel():
        return True  # ids of experts of nearly equal scores may change places
    difference = (rows.double() - due.double()).abs().max()
    return bool(difference <= apart * max(1.0, float(due.double().abs().max())))


def _requests(model: LoadedModel) -> list[GenerationRequest]:
    vocabulary = int(model.text_config.vocab_size)
    ids = [(11 * i + 5) % vocabulary for i in range(max(_PROMPTS) + len(_PROMPTS))]
    return [
        GenerationRequest(key=str(i), prompt_ids=tuple(ids[i : i + n]), seed=i)
        for i, n in enumerate(_PROMPTS)
    ]


def _traced(
    hooks: ModelHooks,
    requests: Sequence[GenerationRequest],
    sampling: SamplingSpec,
    names: Sequence[str],
    sink: "Recorder",
) -> list[Generation]:
    """The same requests in the traced engine, one at a time, so that no padding is in play."""
    capture = Capture(
        reads=hooks.reads(names),
        positions="all",
        dtype=None,
        shaping=RowShaping(),
        sink=_Indexed(sink),
        options=BufferOptions(),
    )
    job = Generate(
        hooks=hooks,
        requests=requests,
        limit=memory.LearnedLimit(),
        should_stop=lambda: False,
        capture=capture,
        sampling=sampling,
        on_step=None,
        capture_of=memory.every_row(hooks.structure, names),
        time_limit=None,
        should_drop=None,
        on_batch=None,
    )
    return job.run([[i] for i in range(len(requests))])


class Recorder:
    """A run's source, sink, results and control in one, which keeps everything in memory."""

    def __init__(self, waiting: Sequence[RunRequest]) -> None:
        self._waiting = list(waiting)
        self._chunks: dict[tuple[str, str], list[torch.Tensor]] = {}
        self.generations: dict[str, Generation] = {}

    @property
    def exhausted(self) -> bool:
        return not self._waiting

    def pull(self, room: int, *, idle: bool) -> Sequence[RunRequest]:
        taken, self._waiting = self._waiting[:room], self._waiting[room:]
        return taken

    def write(self, key: str, rows: Mapping[str, RowChunk]) -> None:
        for hook, chunk in rows.items():
            self._chunks.setdefault((key, hook), []).append(chunk.tensor.clone())

    def reset(self, key: str) -> None:
        self._chunks = {at: chunks for at, chunks in self._chunks.items() if at[0] != key}

    def done(self, request: GenerationRequest, generation: Generation) -> None:
        self.generations[request.key] = generation

    def should_stop(self) -> bool:
        return False

    def should_drop(self, key: str) -> bool:
        return False

    def started(self, request: GenerationRequest, generated_ids: Sequence[int]) -> None:
        pass

    def progressed(self, steps: int) -> None:
        pass

    def rows(self, key: str, hook: str) -> torch.Tensor:
        """All rows of one hook of one request."""
        return torch.cat(self._chunks[key, hook])


class _Indexed:
    """A sink of the traced engine in front of a recorder: the index is the key."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def write(self, index: int, rows: Mapping[str, Any]) -> None:
        self._recorder.write(str(index), rows)

    def reset(self, index: int) -> None:
        self._recorder.reset(str(index))
