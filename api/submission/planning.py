"""Estimates of checked jobs, and admission by memory, disk and quotas.

An estimate guesses prompt lengths from characters. A refusal must be certain: it counts each prompt with the
fewest tokens that its characters allow, and never refuses by an unknown number.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from actograph.contract.chat.chat_job import ChatJobSpec
from actograph.contract.errors import InsufficientResources
from actograph.contract.plans import batch_memory, estimate
from actograph.contract.resources import Estimate, ModelStructure, Need
from actograph.contract.resources.estimates import PromptTokensSource
from actograph.contract.specs import CaptureSpec, EvaluationSpec
from api.dependencies import Services
from api.submission import prompt_tokens
from api.submission.prompt_tokens import MOST_CHARACTERS_PER_TOKEN, PromptTokens
from api.submission.submit import Submission
from storage.queue import pause


def plan(services: Services, submission: Submission, length: int | None = None) -> Estimate:
    """Estimate a job.

    Args:
        length: length of every prompt in tokens, if the client knows it.
    """
    disk_bytes = _disk_left(services, submission)
    lengths, source, how = _prompt_lengths(submission, length)
    assumptions = [how]
    if isinstance(submission.spec, EvaluationSpec) and submission.spec.uses_tools:
        assumptions.append("one turn per sample: tools' descriptions and further turns are not counted")
    if not submission.spec.is_prefill:
        assumptions.append(
            f"every sample generates max_tokens = {submission.spec.max_tokens} tokens; one that ends "
            "earlier takes less"
        )
    if submission.structure is None:
        assumptions.append(f"no worker has loaded {submission.spec.model} yet, so its widths are unknown")
    elif not submission.outlook.memory:
        assumptions.append("no live worker holds the model, so the free memory is unknown")
    if disk_bytes is None:
        assumptions.append("the free space of the artifact store is unknown")
    found = _estimate(submission, lengths, disk_bytes)
    return found.model_copy(update={"prompt_tokens_source": source, "assumptions": assumptions})


def _prompt_lengths(
    submission: Submission, length: int | None
) -> tuple[PromptTokens | None, PromptTokensSource | None, str]:
    """Expected prompt lengths, their source, and the source in words."""
    if length is not None:
        lengths = PromptTokens(mean=length, longest=length)
        return lengths, "request", f"every prompt has {length} tokens, as requested"
    if submission.total is None:
        return None, None, "only the worker can read the dataset; send ?prompt_tokens= for an estimate"
    usual = prompt_tokens.USUAL_CHARACTERS_PER_TOKEN
    how = (
        f"prompt lengths are guessed: a token is {usual:.0f} characters long (usual for English) and a chat "
        "template adds none; send ?prompt_tokens= if you know better"
    )
    return prompt_tokens.of_characters(submission, usual), "characters", how


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
    lengths = prompt_tokens.of_characters(submission, MOST_CHARACTERS_PER_TOKEN)
    admit_parts(services, [Part(submission=submission, lengths=lengths)])


def admit_parts(services: Services, parts: Sequence[Part]) -> None:
    """The same for a job of several parts: all parts are stored, and each must fit into memory."""
    first = parts[0].submission
    disk_bytes = _disk_left(services, first)
    found = [_estimate(part.submission, part.lengths, disk_bytes, batch=1) for part in parts]
    stored = [one.disk.needed for one in found if one.disk.needed is not None]
    disk = _need(sum(stored) if stored else None, disk_bytes)
    device, host = _largest([one.device for one in found]), _largest([one.host for one in found])
    if False not in (disk.fits, device.fits, host.fits):
        return
    counts = [one.samples for one in found]
    total = None if None in counts else sum(count or 0 for count in counts)
    if disk.fits is False and disk.needed is not None:
        # raises QuotaExceeded if a quota is the reason
        first.outlook.quotas.require(first.owner, disk.needed, f"up to {total} samples", param="capture")
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


def _disk_left(services: Services, submission: Submission) -> int | None:
    """Bytes that the job may store; None if the free space is unknown and no quota limits it."""
    writable = pause.writable_bytes(services.store, services.settings.disk_floor_bytes)
    rooms = [writable, submission.outlook.quotas.left(submission.owner)]
    return min((room for room in rooms if room is not None), default=None)


def _estimate(
    submission: Submission, lengths: PromptTokens | None, disk_bytes: int | None, *, batch: int | None = None
) -> Estimate:
    """Estimate a job without words.

    Args:
        disk_bytes: bytes that the job may store; None if unknown.
        batch: samples that run at once; None lets the plan choose.
    """
    spec, structure, names = submission.spec, submission.structure, submission.hooks
    values = Estimate(
        model=spec.model,
        samples=submission.total,
        hooks=names,
        prompt_tokens_mean=math.ceil(lengths.mean) if lengths else None,
        prompt_tokens_longest=lengths.longest if lengths else None,
        generated_tokens=spec.max_tokens,
    )
    if structure is None or names is None:
        return values
    capture, row_bytes = spec.capture or CaptureSpec(), 0
    if estimate.stores_every_row(capture):
        row_bytes = estimate.bytes_per_token(structure, names, capture.dtype, capture.features)
    found: dict[str, object] = {
        "bytes_per_token": row_bytes,
        "weights_bytes": estimate.weights_bytes(structure),
    }
    if lengths is not None:
        # stored sizes grow linearly with the prompt, so the mean prompt gives the sum
        one = estimate.stored_bytes(
            structure,
            names,
            capture,
            prompt_tokens=min(max(1, math.ceil(lengths.mean)), structure.context_length),
            generated_tokens=spec.max_tokens,
        )
        total = None if submission.total is None else one * submission.total
        found |= {"bytes_per_sample": one, "disk": _need(total, disk_bytes)}
        found |= _memory(submission, structure, names, lengths.longest, batch=batch)
    elif not names:
        found["disk"] = _need(0, disk_bytes)
    values = values.model_copy(update=found)
    verdicts = [need.fits for need in (values.device, values.host, values.disk)]
    fits = False if False in verdicts else None if None in verdicts else True
    return values.model_copy(update={"fits": fits})


def _memory(
    submission: Submission,
    structure: ModelStructure,
    names: Sequence[str],
    longest: int,
    *,
    batch: int | None,
) -> dict[str, object]:
    """Memory of one batch with prompts of `longest` tokens; empty if the structure lacks a size."""
    spec, memory = submission.spec, submission.outlook.memory
    capture = spec.capture or CaptureSpec()
    generated, kv_bytes = spec.max_tokens, structure.kv_bytes_per_token
    if kv_bytes is None and generated:
        return {}
    prompt = longest if generated else min(longest, structure.context_length)
    device, host = memory.get("device_available_bytes"), memory.get("host_available_bytes")
    on_gpu = batch_memory.is_gpu(structure)
    budget = batch_memory.Budget(
        device_bytes=device or 0,
        host_buffer_bytes=memory.get("host_buffer_bytes", 2 << 30),
        cap=memory.get("batch_cap", batch_memory.batch_cap(on_gpu=on_gpu)),
        on_gpu=on_gpu,
    )
    need = batch_memory.capture_need(
        structure, names, capture, prompt_tokens=prompt, generated_tokens=generated
    )
    scores = isinstance(spec, ChatJobSpec) and spec.scores_prompts
    sizes = {
        "prompt_tokens": prompt,
        "max_tokens": generated,
        "scored": batch_memory.scored_bytes(structure, prompt_tokens=prompt) if scores else 0,
    }
    chosen = None
    if device is not None:
        chosen = batch_memory.batch_size(structure, kv_bytes or 0, need, budget, **sizes)
    size = batch or chosen or 1
    run = batch_memory.batch_memory(structure, kv_bytes or 0, need, samples=size, **sizes)
    tensors = estimate.tensor_bytes(
        structure, names, capture, prompt_tokens=prompt, generated_tokens=generated
    )
    rows = batch_memory.held_rows_bytes(budget, need, tensors, samples=size)
    return {
        "batch_size": chosen,
        # rows leave the device early: a refusal counts only certain bytes
        "device": _need(run.device if on_gpu and batch is None else run.certain, device),
        # a CPU has one memory for both
        "host": _need(rows if on_gpu else run.certain + rows, host),
    }


def _need(needed: int | None, available: int | None) -> Need:
    fits = None if needed is None or available is None else needed <= available
    return Need(needed=needed, available=available, fits=fits)
