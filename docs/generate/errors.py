"""The page of error codes: status and meaning from the contract, cures from here."""

from collections.abc import Iterator

from actograph.contract import errors
from docs.generate.markdown import cell, code, heading, table

INTRODUCTION = """\
A refused request is answered with `application/problem+json` ([Problem](objects.md#problem)). `code` is
listed below, `detail` says what was wrong, and `errors` names the bad fields by JSON pointers.
OpenAI's routes use OpenAI's form, with the same codes under `error.code`. A failed job or sample has the
code under `error.type`."""
#: code -> cure
CURES = {
    "invalid_request": "Correct the fields named in `errors`.",
    "unknown_hook": "Pick a name from `actograph models structure --names`.",
    "model_not_found": "Pick a name from `actograph models ls`, or have the operator add it to "
    "`ACTOGRAPH_ALLOWED_MODELS`.",
    "context_length_exceeded": "Shorten the prompt or lower `max_tokens`. In mode `prefill`, set `truncate`.",
    "insufficient_resources": "Run `actograph estimate`. Capture less, or split the job (`offset`, `limit`).",
    "quota_exceeded": "Delete sessions or files, let them expire, or ask for a larger quota.",
    "invalid_dataset": "Correct the rows or columns named in the message.",
    "function_failed": "The message is the function's: have the operator look at it, or choose another.",
    "not_found": "Check the id, and that the key belongs to the owner of the item.",
    "conflict": "Read the item's current state; wait for the job to end, or unpin the session.",
    "idempotency_in_flight": "Send the same request again in a moment.",
    "idempotency_mismatch": "Use a new `Idempotency-Key` for a new body.",
    "payload_too_large": "Upload a dataset instead of inline inputs, or split the request.",
    "unauthorized": "Set `ACTOGRAPH_API_KEY`, or pass `--api-key`.",
    "forbidden": "Use a key of a higher role.",
    "range_not_satisfiable": "Ask for rows or bytes within the tensor or file.",
    "service_unavailable": "Repeat after `Retry-After`; `GET /readyz` names the failed part.",
    "storage_full": "Delete sessions, run `actograph store gc`, or enlarge the disk.",
    "internal_error": "A bug or a broken dependency: the log of the API or worker has the traceback.",
    "capture_failed": "The message names the hook; check it with `actograph models structure`.",
    "replay_differs": "Run `actograph store verify`, or set a larger `tolerance` if it is rounding.",
    "pair_skipped": "Give prompts of the same length, or positions that count from the end.",
    "intervention_failed": "Lower the coefficient: the model's output was not finite.",
    "cuda_out_of_memory": "A single sample does not fit: capture less, shorten it, or use a larger device.",
    "model_refused": "The message names the failed check; correct the checkpoint or the load options.",
    "model_changed": "Put the former weights back and retry the job, or submit it again.",
    "mixed_identities": "Choose sessions of one model by the filters.",
    "worker_lost": "Retry the job. If the sample ends the worker again, look into the worker's log.",
    "worker_stalled": "The device hung. Check it, or raise `ACTOGRAPH_STALL_SECONDS` for slow models.",
    "device_lost": "Check the device and its driver, then retry the job.",
    "sample_timeout": "Raise `sample_timeout_seconds`, or lower `max_tokens`.",
    "deadline_exceeded": "Retry the job; the deadline counts from the retry.",
    "job_ended": "Nothing: the sample's job was cancelled or ended first.",
    "too_many_failures": "Correct the cause that the last sample names, then retry the job.",
    "package_missing": "Install the package that the message names, where the job or call runs.",
    "store_damaged": "Run `actograph store verify`; restore the file, or delete the session and rerun it.",
}


def codes() -> Iterator[type[errors.ActographError]]:
    """Error classes, one for each code, in the order of the module."""
    seen: set[str] = set()
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.ActographError) and kind.code not in seen:
            seen.add(kind.code)
            yield kind


def page() -> str:
    """Build the page. Fails for a code without a cure."""
    rows = [
        (code(kind.code), str(kind.status), cell(kind.__doc__ or ""), cell(CURES[kind.code]))
        for kind in codes()
    ]
    return heading("Errors", INTRODUCTION) + table(("code", "HTTP", "cause", "cure"), rows)
