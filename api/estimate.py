"""Estimates of checked jobs, and admission by memory, disk and quotas.

An estimate guesses prompt lengths from characters. A refusal must be certain: it counts each prompt with the
fewest tokens that its characters allow, and never refuses by an unknown number.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

from actograph.contract.errors import InsufficientResources
from actograph.contract.job_specs import CaptureJobSpec, EvaluationSpec
from actograph.contract.models import ModelStructure
from actograph.contract.operations import Estimate, Need
from actograph.contract.saes import SaeConfig
from actograph.contract.specs import CaptureSpec
from api.dependencies import Services
from api.submission import Submission
from evals import plans
from evals.prompts import task_of
from storage.queue import pause

#: usual for English text and a vocabulary of 30,000 tokens or more
USUAL_CHARACTERS_PER_TOKEN = 4.0
#: a text never has longer tokens on average, which gives its fewest tokens
MOST_CHARACTERS_PER_TOKEN = 8.0


#: prompt lengths in tokens over the samples of a job: mean (rounded up) and longest
Lengths = tuple[int, int]


def plan(services: Services, submission: Submission[Any], length: int | None = None) -> Estimate:
    """Estimate a job.

    Args:
        length: length of every prompt in tokens, if the client knows it.
    """
    if submission.surveys:
        return _reading(submission)
    spec, source = submission.spec, None
    lengths = (length, length) if length is not None else _lengths(submission, USUAL_CHARACTERS_PER_TOKEN)
    if length is not None:
        source, said = "request", f"every prompt has {length} tokens, as requested"
    elif submission.counts is not None:
        source, said = "sessions", "the sessions are read to their ends; their numbers of tokens are known"
        if (cells := submission.counts.cells) is not None:
            said = (
                f"each pair reads its prompt for {cells} cells and two baselines; prompt_tokens_mean counts "
                "the tokens of all of them, without those that cells share"
            )
    elif submission.total is None:
        said = "only the worker can read the dataset; send ?prompt_tokens= for an estimate"
    else:
        source = "characters"
        said = (
            f"prompt lengths are guessed: {USUAL_CHARACTERS_PER_TOKEN:.0f} characters per token, no chat "
            "template, one turn; send ?prompt_tokens= if you know better"
        )
    assumptions = [said]
    if not spec.is_prefill:
        assumptions.append(f"every sample generates max_tokens = {spec.max_tokens} tokens")
    if submission.structure is None:
        assumptions.append(
            f"no worker has loaded {spec.model} yet, so its widths are unknown; by its config.json, "
            "`actograph estimate --card 24GiB` says what fits"
        )
    elif "run_bytes" not in submission.memory:
        assumptions.append("no live worker holds the model, so the free memory is unknown")
    else:
        assumptions.append(
            f"a run has {submission.memory['run_bytes']:,} bytes for keys, values and rows; it reserves "
            "prompt and max_tokens of each sample; logits and activations take of the rest"
        )
    found = _estimate(services, submission, lengths)
    if found.disk.available is None:
        assumptions.append("the free space of the artifact store is unknown")
    return found.model_copy(update={"prompt_tokens_source": source, "assumptions": assumptions})


def _reading(submission: Submission[Any]) -> Estimate:
    """Estimate what an analysis reads."""
    surveys = submission.surveys
    return Estimate(
        model=submission.spec.model,
        samples=submission.total,
        hooks=submission.hooks,
        generated_tokens=0,
        rows_to_read=sum(one.rows for one in surveys),
        bytes_to_read=sum(one.bytes for one in surveys),
        fits=True,
        assumptions=[
            f"{sum(one.sessions for one in surveys)} sessions have the hooks of the first one, at every "
            "token",
            "the analysis runs on a CPU, beside the workers that hold a model",
        ],
    )


def admit(services: Services, submission: Submission[Any]) -> None:
    """Refuse a job that cannot be run or stored; an analysis stores no rows.

    Raises:
        InsufficientResources: with the needed and available bytes (QuotaExceeded for a quota).
    """
    if submission.surveys:
        return
    spec, lengths = submission.spec, _lengths(submission, MOST_CHARACTERS_PER_TOKEN)
    found = _estimate(services, submission, lengths, alone=True)
    what = f"up to {submission.total} samples"
    submission.quotas.require(submission.owner, found.disk.needed or 0, what, param="capture")
    of_a_sample = "capture" if spec.is_prefill else "sampling.max_tokens"
    for need, subject, param in (
        (found.disk, f"disk for {what}", "capture"),
        (found.device, "memory of the device for a sample alone", of_a_sample),
        (found.host, "main memory for a sample alone", of_a_sample),
    ):
        if need.fits is False:
            raise InsufficientResources(
                f"the job does not fit. {subject}: needed {need.needed:,} bytes, available "
                f"{need.available:,} (prompts counted with as few tokens as they can have, max_tokens "
                f"{spec.max_tokens}). Lower max_tokens or limit, capture fewer hooks or positions, or free "
                "space; POST /v1/estimate shows the plan",
                param=param,
            )


def _lengths(submission: Submission[Any], per_token: float) -> Lengths | None:
    """Lengths of all prompts, with `per_token` characters per token.

    Returns None if only the worker can read the dataset, or if it is empty.
    """
    if not submission.total:
        return None
    if (counts := submission.counts) is not None:
        return counts.prompt + counts.generated, counts.longest
    spec, shown, around = submission.spec, 0, {}
    columns: Collection[str] = ()
    if isinstance(spec, CaptureJobSpec):  # a system message replaces one that is counted, if there is one
        around = {c.name: len(c.prefix) + len(c.suffix) for c in spec.conditions}
    elif isinstance(spec, EvaluationSpec):
        columns = task_of(spec).prompt_columns
        around = {c.name: len(c.prefix) + len(c.suffix) + len(c.system or "") for c in spec.conditions}
        if spec.num_fewshot:
            # worked examples are about as long as the average problem
            sizes = [len(s.input["question"]) + len(s.input["answer"]) for s in submission.samples()]
            shown = spec.num_fewshot * sum(sizes) // len(sizes)
    longest = total = 0
    for sample in submission.samples():
        characters = _characters(sample.input, columns) + around.get(sample.condition, 0) + shown
        tokens = max(1, math.ceil(characters / per_token))
        longest, total = max(longest, tokens), total + tokens
    return math.ceil(total / submission.total), longest


def _characters(given: Mapping[str, Any], columns: Collection[str]) -> int:
    """Characters of a prompt with these columns, without those of the chat template."""
    if "question" in given:
        others = (value for name, value in given.get("columns", {}).items() if name in columns)
        return len(given["question"]) + sum(len(str(value)) for value in others)
    if "prompt" in given:
        return len(given["prompt"])
    if "prompt_token_ids" in given:
        return int(MOST_CHARACTERS_PER_TOKEN) * len(given["prompt_token_ids"])
    return sum(len(message["content"]) for message in given["messages"])


def _estimate(
    services: Services, submission: Submission[Any], lengths: Lengths | None, *, alone: bool = False
) -> Estimate:
    """Estimate a job without words; `alone` plans one sample at a time."""
    spec, structure, names = submission.spec, submission.structure, submission.hooks
    mean, longest = lengths or (None, None)
    found: dict[str, Any] = {
        "model": spec.model,
        "samples": submission.total,
        "hooks": names,
        "prompt_tokens_mean": mean,
        "prompt_tokens_longest": longest,
        "generated_tokens": spec.max_tokens,
    }
    # a quota limits the disk too; None is unknown
    writable = pause.writable_bytes(services.store, services.settings.disk_floor_bytes)
    rooms = [room for room in (writable, submission.quotas.left(submission.owner)) if room is not None]
    needed = None
    if structure is not None and names is not None:
        capture, generated = spec.capture or CaptureSpec(), spec.max_tokens
        if submission.counts is not None:
            # positions count in prompt and generation, of which all tokens are read at once
            structure, generated = structure.read_whole(), submission.counts.generated
        row_bytes = 0
        if plans.stores_every_row(capture):
            row_bytes = plans.bytes_per_token(structure, names, capture.dtype, capture.features)
            row_bytes += plans.computed_bytes(capture)
        found |= {"bytes_per_token": row_bytes, "weights_bytes": plans.weights_bytes(structure)}
        needed = None if names else 0
        if mean is not None and longest is not None:
            # stored sizes grow linearly with the prompt, so the mean prompt gives the sum
            mean = min(mean, structure.context_length)
            prompt = mean if submission.counts is None else max(1, mean - generated)
            one = plans.stored_bytes(
                structure, names, capture, prompt_tokens=prompt, generated_tokens=generated
            )
            needed = None if submission.total is None else one * submission.total
            found |= {"bytes_per_sample": one, **_memory(submission, structure, longest, alone=alone)}
    found["disk"] = _need(needed, min(rooms, default=None))
    verdicts = [found.get(name, Need()).fits for name in ("device", "host", "disk")]
    fits = False if False in verdicts else None if None in verdicts else True
    return Estimate(**found, fits=fits)


def _memory(
    submission: Submission[Any], structure: ModelStructure, longest: int, *, alone: bool
) -> dict[str, object]:
    """Memory of the samples that run at once, each with `longest` tokens; empty if a size is unknown."""
    spec, memory, on_gpu = submission.spec, submission.memory, plans.is_gpu(structure)
    if structure.kv_bytes_per_token is None:
        return {}
    token_bytes = max(1, structure.kv_bytes_per_token)
    need = plans.sample_need(
        structure,
        submission.hooks or (),
        spec.capture or CaptureSpec(),
        token_bytes=token_bytes,
        prompt_tokens=longest,
        generated_tokens=spec.max_tokens,
        saes=_encoders(submission),
        readouts=[
            vector.width
            for param, vector in submission.vectors.items()
            if param.startswith("capture.readouts.")
        ],
    )
    slots = memory.get("slots", plans.most_slots(on_gpu=on_gpu))
    row_bytes = memory.get("host_buffer_bytes", 2 << 30)
    total, room, chosen = memory.get("run_bytes"), None, None
    if total is not None:
        room = plans.run_memory(
            total,
            token_bytes=token_bytes,
            slots=slots,
            context=structure.context_length,
            row_bytes=row_bytes,
            on_gpu=on_gpu,
        )
        chosen = plans.samples_at_once(room, need, slots)
    size = 1 if alone else chosen or 1
    # rows leave early if memory is short: a sample alone holds one block
    held = need.held
    least = held.on_host if on_gpu else held.together
    rows = least if alone else max(size * least, min(size * need.rows, row_bytes))
    rows += 0 if on_gpu else held.encoders
    keys = size * need.keys
    on_device = Need(
        needed=keys + held.spare + size * held.on_device if on_gpu else keys,
        available=(room.total if on_gpu else room.for_keys) if room else None,
        fits=plans.fits_device(room, need, size) if room else None,
    )
    return {
        "slots": chosen,
        "device": on_device,
        "host": _need(rows, memory.get("host_available_bytes")) if on_gpu else _need(keys + rows, total),
    }


def _encoders(submission: Submission[Any]) -> list[SaeConfig]:
    """The SAEs with which the job encodes, each once."""
    named = [sae for param, sae in submission.saes.items() if param.startswith("capture.")]
    return [sae.config for sae in {one.sha256: one for one in named}.values()]


def _need(needed: int | None, available: int | None) -> Need:
    fits = None if needed is None or available is None else needed <= available
    return Need(needed=needed, available=available, fits=fits)
