"""Estimates of checked jobs, and admission by memory, disk and quotas.

An estimate tokenizes a sample of the job's prompts, or counts their characters. A refusal must be certain: it
counts each prompt with the fewest tokens that its characters allow, and never refuses by an unknown number.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from actograph.contract.chat.chat_job import ChatJobSpec
from actograph.contract.errors import InsufficientResources
from actograph.contract.plans import batch_memory, estimate
from actograph.contract.plans.prefill_plan import prefill_plan
from actograph.contract.resources import Estimate, ModelStructure, Need
from actograph.contract.resources.estimates import PromptTokensSource
from actograph.contract.specs import CaptureSpec, EvaluationSpec
from api.dependencies import Services
from api.submission import measured_prompts, prompt_tokens
from api.submission.prompt_tokens import PromptTokens
from api.submission.steps import Submission
from storage.accounts.quotas import Quotas
from storage.queue import pause


@dataclass(frozen=True, kw_only=True)
class _Known:
    """Numbers of the service that a plan uses."""

    structure: ModelStructure | None
    #: memory of the live worker with most free memory
    memory: dict[str, int]
    disk_bytes: int | None
    quotas: Quotas


def plan(services: Services, submission: Submission, length: int | None = None) -> Estimate:
    """Estimate a job.

    Args:
        length: length of every prompt in tokens, if the client knows it.
    """
    known = _known(services, submission)
    lengths, source, how = _prompt_lengths(services, submission, length)
    assumptions = [how]
    if isinstance(submission.spec, EvaluationSpec) and submission.spec.uses_tools:
        assumptions.append("one turn per sample: tools' descriptions and further turns are not counted")
    if not submission.spec.is_prefill:
        assumptions.append(
            f"every sample generates max_tokens = {submission.spec.max_tokens} tokens; one that ends "
            "earlier takes less"
        )
    if known.structure is None:
        assumptions.append(f"no worker has loaded {submission.spec.model} yet, so its widths are unknown")
    elif not known.memory:
        assumptions.append("no live worker holds the model, so the free memory is unknown")
    if known.disk_bytes is None:
        assumptions.append("the free space of the artifact store is unknown")
    found = _estimate(submission, known, lengths, assumptions)
    return found.model_copy(update={"prompt_tokens_source": source})


def _prompt_lengths(
    services: Services, submission: Submission, length: int | None
) -> tuple[PromptTokens | None, PromptTokensSource | None, str]:
    """Expected prompt lengths, their source, and the source in words."""
    if length is not None:
        lengths = PromptTokens(mean=length, longest=length)
        return lengths, "request", f"every prompt has {length} tokens, as requested"
    if submission.total is None:
        return None, None, "only the worker can read the dataset; send ?prompt_tokens= for an estimate"
    measured = measured_prompts.measure(services, submission)
    if not isinstance(measured, str):
        return measured[0], "measured_prompts", measured[1]
    usual = prompt_tokens.USUAL_CHARACTERS_PER_TOKEN
    how = (
        f"a token is {usual:.0f} characters long (usual for English) and a chat template adds none, "
        f"because {measured}"
    )
    return prompt_tokens.usual(submission), "characters", how


@dataclass(frozen=True, kw_only=True)
class Part:
    """Samples of a job with the same capture."""

    #: the samples as a job of their own
    submission: Submission
    #: lengths of their prompts; None if unknown
    lengths: PromptTokens | None


def admit(services: Services, submission: Submission) -> None:
    """Refuse a job that cannot be run or stored.

    Raises:
        InsufficientResources: with the needed and available bytes (QuotaExceeded for a quota).
    """
    admit_parts(services, [Part(submission=submission, lengths=prompt_tokens.fewest(submission))])


def admit_parts(services: Services, parts: Sequence[Part]) -> None:
    """The same for a job of several parts: all parts are stored, and each must fit into memory."""
    first = parts[0].submission
    known = _known(services, first)
    found = [_estimate(part.submission, known, part.lengths, [], batch=1) for part in parts]
    stored = [one.disk.needed for one in found if one.disk.needed is not None]
    disk = _need(sum(stored) if stored else None, known.disk_bytes)
    device, host = _largest([one.device for one in found]), _largest([one.host for one in found])
    if False not in (disk.fits, device.fits, host.fits):
        return
    counts = [one.samples for one in found]
    total = None if None in counts else sum(count or 0 for count in counts)
    if disk.fits is False and disk.needed is not None:
        # raises QuotaExceeded if a quota is the reason
        known.quotas.require(first.owner, disk.needed, f"up to {total} samples", param="capture")
    faults = [
        f"{what}: needed {need.needed:,} bytes, available {need.available:,}"
        for what, need in (
            (f"disk for up to {total} samples", disk),
            ("memory of the device for a batch of one", device),
            ("main memory for a batch of one", host),
        )
        if need.fits is False
    ]
    raise InsufficientResources(
        f"the job does not fit. {'; '.join(faults)} (prompts counted with as few tokens as they can have, "
        f"max_tokens {max(one.generated_tokens for one in found)}). Lower max_tokens or limit, capture fewer "
        "hooks or positions, or free space; POST /v1/estimate shows the plan",
        param="capture" if disk.fits is False or first.spec.is_prefill else "sampling.max_tokens",
    )


def _largest(needs: Sequence[Need]) -> Need:
    return max(needs, key=lambda need: -1 if need.needed is None else need.needed)


def _known(services: Services, submission: Submission) -> _Known:
    holders, limits = submission.outlook.memory, submission.outlook.quotas
    writable = pause.writable_bytes(services.store, services.settings.disk_floor_bytes)
    rooms = [room for room in (writable, limits.left(submission.owner)) if room is not None]
    return _Known(
        structure=submission.structure,
        memory=max(holders, key=lambda memory: memory.get("device_available_bytes", 0), default={}),
        disk_bytes=min(rooms, default=None),
        quotas=limits,
    )


def _estimate(
    submission: Submission,
    known: _Known,
    lengths: PromptTokens | None,
    assumptions: list[str],
    batch: int | None = None,
) -> Estimate:
    """`batch` is the batch size to plan for; None lets the plan choose it."""
    spec, structure = submission.spec, known.structure
    generated = spec.max_tokens
    values = Estimate(
        model=spec.model,
        samples=submission.total,
        hooks=submission.hooks,
        prompt_tokens_mean=math.ceil(lengths.mean) if lengths else None,
        prompt_tokens_longest=lengths.longest if lengths else None,
        generated_tokens=generated,
        assumptions=assumptions,
    )
    if structure is None or submission.hooks is None:
        return values
    names, capture = submission.hooks, spec.capture or CaptureSpec()
    row_bytes = 0
    if estimate.stores_every_row(capture):
        row_bytes = estimate.bytes_per_token(structure, names, capture.dtype, capture.features)
    found: dict[str, object] = {
        "bytes_per_token": row_bytes,
        "weights_bytes": estimate.weights_bytes(structure),
    }
    if lengths is not None:
        scores = isinstance(spec, ChatJobSpec) and spec.scores_prompts
        scored = batch_memory.scored_bytes(structure, prompt_tokens=lengths.longest) if scores else 0
        found |= _disk(submission, structure, capture, lengths, known.disk_bytes)
        if spec.is_prefill:
            found |= _prefill_memory(
                submission,
                structure,
                capture,
                known.memory,
                prompt_tokens=lengths.longest,
                batch=batch,
                scored=scored,
            )
        else:
            tokens = (lengths.longest, generated)
            captured = _Captured.of(structure, names, capture, tokens)
            found |= _memory(structure, known.memory, captured, tokens, batch=batch, scored=scored)
    elif not names:
        found["disk"] = _need(0, known.disk_bytes)
    values = values.model_copy(update=found)
    verdicts = [need.fits for need in (values.device, values.host, values.disk)]
    fits = False if False in verdicts else None if None in verdicts else True
    return values.model_copy(update={"fits": fits})


def _disk(
    submission: Submission,
    structure: ModelStructure,
    capture: CaptureSpec,
    lengths: PromptTokens,
    available: int | None,
) -> dict[str, object]:
    """Stored sizes grow linearly with the prompt, so the mean prompt gives the sum."""
    one = estimate.stored_bytes(
        structure,
        submission.hooks or (),
        capture,
        prompt_tokens=min(max(1, math.ceil(lengths.mean)), structure.context_length),
        generated_tokens=submission.spec.max_tokens,
    )
    total = None if submission.total is None else one * submission.total
    return {"bytes_per_sample": one, "disk": _need(total, available)}


@dataclass(frozen=True)
class _Captured:
    """Bytes that the capture of the longest prompt takes."""

    need: batch_memory.CaptureNeed
    #: bytes of all tensors of the sample
    tensors: int

    @classmethod
    def of(
        cls,
        structure: ModelStructure,
        hooks: Sequence[str],
        capture: CaptureSpec,
        tokens: tuple[int, int],
    ) -> "_Captured":
        """`tokens` are the lengths of the prompt and of the completion."""
        prompt, generated = tokens
        return cls(
            batch_memory.capture_need(structure, hooks, capture, prompt_tokens=prompt),
            estimate.tensor_bytes(
                structure, hooks, capture, prompt_tokens=prompt, generated_tokens=generated
            ),
        )


def _memory(
    structure: ModelStructure,
    memory: dict[str, int],
    captured: _Captured,
    tokens: tuple[int, int],
    *,
    batch: int | None,
    scored: int,
) -> dict[str, object]:
    """Plan the memory of a generating job.

    Args:
        tokens: lengths of the longest prompt and of the completion.
        scored: further bytes for probabilities of prompt tokens.
    """
    prompt, generated = tokens
    kv_bytes = structure.kv_bytes_per_token
    if kv_bytes is None:
        return {}
    budget = _budget(structure, memory)
    on_gpu, device, host = budget.on_gpu, *_available(memory)
    chosen = None
    if device is not None:
        chosen = batch_memory.batch_size(
            structure,
            kv_bytes,
            captured.need,
            budget,
            prompt_tokens=prompt,
            max_tokens=generated,
            scored=scored,
        )
    size = batch or chosen or 1
    run = batch_memory.batch_memory(
        structure,
        kv_bytes,
        captured.need,
        samples=size,
        prompt_tokens=prompt,
        max_tokens=generated,
        scored=scored,
    )
    rows = batch_memory.held_rows_bytes(budget, captured.need, captured.tensors, samples=size)
    return {
        "batch_size": chosen,
        # rows leave the device early: a refusal counts only certain bytes
        "device": _need(run.device if on_gpu and batch is None else run.certain, device),
        # a CPU has one memory for both
        "host": _need(rows if on_gpu else run.certain + rows, host),
    }


def _prefill_memory(
    submission: Submission,
    structure: ModelStructure,
    capture: CaptureSpec,
    memory: dict[str, int],
    *,
    prompt_tokens: int,
    batch: int | None,
    scored: int,
) -> dict[str, object]:
    """Plan the memory of a job that reads texts without continuing them."""
    budget = _budget(structure, memory)
    device, host = _available(memory)
    tokens = min(prompt_tokens, structure.context_length)
    chosen = prefill_plan(
        structure,
        submission.hooks or (),
        capture,
        budget,
        prompt_tokens=tokens,
        samples=batch or (None if device is not None else 1),
    )
    forward, held = chosen.forward_bytes + scored, chosen.held_bytes
    on_gpu = budget.on_gpu
    return {
        "batch_size": chosen.batch_size if device is not None else None,
        "device": _need(forward + chosen.in_flight_bytes if on_gpu and batch is None else forward, device),
        "host": _need(held if on_gpu else forward + held, host),
    }


def _available(memory: dict[str, int]) -> tuple[int | None, int | None]:
    """Free bytes on the device and in main memory; None if unknown."""
    return memory.get("device_available_bytes"), memory.get("host_available_bytes")


def _budget(structure: ModelStructure, memory: dict[str, int]) -> batch_memory.Budget:
    on_gpu = batch_memory.is_gpu(structure)
    return batch_memory.Budget(
        device_bytes=memory.get("device_available_bytes", 0),
        host_buffer_bytes=memory.get("host_buffer_bytes", 2 << 30),
        cap=memory.get("batch_cap", batch_memory.batch_cap(on_gpu=on_gpu)),
        on_gpu=on_gpu,
    )


def _need(needed: int | None, available: int | None) -> Need:
    fits = None if needed is None or available is None else needed <= available
    return Need(needed=needed, available=available, fits=fits)
