"""The estimate of `actograph estimate --card`: room on a GPU of some size, by a model's config."""

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from pydantic import ByteSize, TypeAdapter, ValidationError

from actograph.contract.errors import InvalidRequest
from actograph.contract.operations import CardEstimate
from actograph.contract.specs import CaptureSpec, SamplingSpec
from actograph.stack.programs import program, program_environment, require_installed

DTYPES = ("auto", "float32", "float16", "bfloat16")
#: a smaller size is one whose unit was forgotten
_LEAST_BYTES = 1 << 30


def estimate_card(
    job: Mapping[str, Any],
    card: str,
    *,
    prompt_tokens: int | None = None,
    tensor_parallel: int | None = None,
    dtype: str | None = None,
    slots: int | None = None,
) -> CardEstimate:
    """Estimate a model that nothing serves, in a process of the service's environment.

    Args:
        job: body of a job, of which `model` (folder or Hub id), `capture` and `sampling` count.
        card: memory of a GPU, such as `24GiB`.
        prompt_tokens: with `max_tokens` of the job, a further length to try.

    Raises:
        InvalidRequest: of the arguments, or the sizes cannot be derived from the config; with the reason.
        ServiceUnavailable: only the client is installed.
    """
    if not job.get("model"):
        raise InvalidRequest("--card needs --model: the folder of a checkpoint, or a Hub id")
    if dtype is not None and dtype not in DTYPES:
        raise InvalidRequest(f"--model-dtype: {dtype!r} is none of {', '.join(DTYPES)}")
    require_installed()
    tokens = None
    if prompt_tokens is not None:
        is_read = (job.get("capture") or {}).get("mode") == "prefill"
        most = (job.get("sampling") or {}).get("max_tokens", SamplingSpec().max_tokens)
        tokens = prompt_tokens + (0 if is_read else max(0, most - 1))
    order = {
        "model": job["model"],
        "card_bytes": _bytes_of(card),
        "tensor_parallel": tensor_parallel or 1,
        "slots": slots or 0,
        "dtype": dtype or "auto",
        "revision": None,
        "capture": _capture_of(job),
        "tokens": tokens,
    }
    done = subprocess.run(
        program("worker.engine.estimate"),
        input=json.dumps(order),
        env=program_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        return CardEstimate.model_validate_json(lines[-1])
    try:
        raise InvalidRequest(json.loads(lines[-1])["error"])
    except (IndexError, ValueError, KeyError):
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise InvalidRequest(f"{job['model']}: its config could not be estimated: {reason}") from None


def _capture_of(job: Mapping[str, Any]) -> dict[str, Any] | None:
    if not job.get("capture"):
        return None
    try:
        return CaptureSpec.model_validate(job["capture"]).model_dump(mode="json", exclude_defaults=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidRequest(f"capture.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _bytes_of(card: str) -> int:
    try:
        size = int(TypeAdapter(ByteSize).validate_python(card))
    except ValidationError:
        raise InvalidRequest(f"--card: {card!r} is not a size; use 24GiB, for a card sold as 24 GB") from None
    if size < _LEAST_BYTES:
        raise InvalidRequest(f"--card: {card} is {size:,} bytes, less than any GPU has; use 24GiB")
    return size
