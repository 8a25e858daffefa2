"""`actograph estimate`: memory and disk of a job. Takes the flags of `jobs submit`."""

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.cli import exit_codes
from actograph.cli.flags import job_spec
from actograph.cli.flags.add_flags import add_flags
from actograph.cli.flags.job_flags import job_options
from actograph.cli.flags.options import FormatOption, client_of
from actograph.cli.output import tables
from actograph.cli.output.output import Format, emit

if TYPE_CHECKING:
    from actograph.client import Client
    from actograph.contract.resources import Estimate, Need
    from actograph.job_requests.assembly import JobRequest


@add_flags(job_options())
def estimate(
    ctx: typer.Context,
    *,
    prompt_tokens: Annotated[
        int | None, typer.Option("--prompt-tokens", min=1, help="Assumed length of every prompt.")
    ] = None,
    output: FormatOption = Format.TABLE,
    **flags: Any,
) -> None:
    """Estimate the memory and disk of a job. Exit status 1: it does not fit."""
    request = job_spec.request_of(**flags)
    with closing(client_of(ctx)) as client:
        estimated = estimate_request(client, request, prompt_tokens)
    emit(estimated.model_dump_json() if output is Format.JSON else describe(estimated))
    if estimated.fits is False:
        raise exit_codes.Ended(exit_codes.ERROR)


def estimate_request(client: "Client", request: "JobRequest", prompt_tokens: int | None = None) -> "Estimate":
    """Check and estimate a job. Its files are uploaded, and deleted again."""
    client.submissions.complete(request.body)
    sent: list[str] = []
    try:
        sent = client.submissions.upload(request, progress=True)
        return client.jobs.estimate(request.body, prompt_tokens=prompt_tokens)
    finally:
        for file_id in sent:
            client.files.delete(file_id)


def describe(found: "Estimate") -> str:
    """Describe an estimate: its fields, then a table of needs."""
    facts = {
        "model": found.model,
        "samples": _number(found.samples),
        "hooks": _number(len(found.hooks) if found.hooks is not None else None),
        "prompt tokens": f"mean {_number(found.prompt_tokens_mean)}, "
        f"longest {_number(found.prompt_tokens_longest)}",
        "generated": f"at most {found.generated_tokens}" if found.generated_tokens else "nothing",
        "per token": _size(found.bytes_per_token),
        "per sample": _size(found.bytes_per_sample),
        "batch size": _number(found.batch_size),
        "weights": _size(found.weights_bytes),
        "fits": _verdict(found.fits),
    }
    lines = [f"{name + ':':<15}{text}" for name, text in facts.items()]
    needs = {"device": found.device, "host": found.host, "disk": found.disk}
    rows = [[name, *_need(need)] for name, need in needs.items()]
    headers = ("RESOURCE", "NEEDED", "AVAILABLE", "FITS")
    table = tables.render(headers, rows, right=("NEEDED", "AVAILABLE"))
    notes = [f"- {tables.clean(text)}" for text in found.assumptions]
    return "\n".join([*lines, "", table, "", *notes])


def _need(need: "Need") -> list[str]:
    return [_size(need.needed), _size(need.available), _verdict(need.fits)]


def _verdict(fits: bool | None) -> str:
    return "unknown" if fits is None else "yes" if fits else "no"


def _number(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _size(value: int | None) -> str:
    return "unknown" if value is None else tables.size(value)
