"""`actograph estimate`: will a job fit? Takes what `jobs submit` takes."""

import inspect
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.cli import exit_codes
from actograph.cli.flags import job_flags
from actograph.cli.flags.options import FormatOption, client_of
from actograph.cli.jobs import jobs
from actograph.cli.output import tables
from actograph.cli.output.output import Format, emit

if TYPE_CHECKING:
    from actograph.contract.resources import Estimate, Need

_OWN = ("ctx", "watch", "output")


def estimate(ctx: typer.Context, prompt_tokens: int | None, output: Format, **flags: Any) -> None:
    """Show what a job would take, without queueing it. Exit status 1: it does not fit."""
    body, uploads = job_flags.body_of(**flags)
    with closing(client_of(ctx)) as client:
        jobs.complete(client, body)
        sent: list[str] = []
        try:
            sent = job_flags.upload(client, body, uploads)
            found = client.jobs.estimate(body, prompt_tokens=prompt_tokens)
        finally:
            for file_id in sent:
                client.files.delete(file_id)
    emit(found.model_dump_json() if output is Format.JSON else describe(found))
    if found.fits is False:
        raise exit_codes.Ended(exit_codes.ERROR)


def _signature() -> inspect.Signature:
    """The flags of `jobs submit`, so that a command line can be tried with one word changed."""
    submit = inspect.signature(jobs.submit).parameters
    shared = [parameter for name, parameter in submit.items() if name not in _OWN]
    option = Annotated[
        int | None,
        typer.Option("--prompt-tokens", min=1, help="Length of every prompt, where you know it."),
    ]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature(
        [
            submit["ctx"],
            *shared,
            inspect.Parameter("prompt_tokens", keyword, default=None, annotation=option),
            inspect.Parameter("output", keyword, default=Format.TABLE, annotation=FormatOption),
        ]
    )


estimate.__signature__ = _signature()  # type: ignore[attr-defined]


def describe(found: "Estimate") -> str:
    """The estimate as lines and a table of needs."""
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
