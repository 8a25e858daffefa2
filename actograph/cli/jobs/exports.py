"""`actograph jobs export`, also called `actograph results pull`: a job's results as a folder of files."""

import json
import time
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from actograph.cli import exit_codes
from actograph.cli.flags.options import FormatOption, MixedIdentitiesOption, client_of
from actograph.cli.jobs import jobs
from actograph.cli.output.output import Format, emit, note

app = typer.Typer(no_args_is_help=True, help="Fetch results as files.")


class Activations(StrEnum):
    NONE = "none"
    META = "meta"
    SAMPLED = "sampled"
    ALL = "all"


def export(
    ctx: typer.Context,
    job: jobs.JobArgument,
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Folder; by default one named by the job's id."),
    ] = None,
    activations: Annotated[
        Activations,
        typer.Option(help="meta: shapes and sizes; sampled: 50 features of each row; all: every file."),
    ] = Activations.META,
    mixed_identities: MixedIdentitiesOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Fetch a job's results folder; what broke off is taken up again. Works while the job runs."""
    from actograph.progress import RateMeter, view

    with closing(client_of(ctx)) as client:
        job_id = jobs.resolve(client, job)
        folder = out or Path(job_id)
        meters: dict[str, RateMeter] = {}
        with view() as shown:

            def progress(what: str, done: int, total: int) -> None:
                meter = meters.setdefault(what, RateMeter())
                meter.add(time.monotonic(), done)
                shown.update(what, done, 0, total, meter.per_second)

            try:
                pulled = client.jobs.pull_results(
                    job_id,
                    folder,
                    activations=activations.value,
                    on_progress=progress,
                    mixed_identities=mixed_identities,
                )
            except KeyboardInterrupt:
                note(f"broken off; the same command goes on in {folder}")
                raise exit_codes.Ended(exit_codes.INTERRUPTED) from None
    if not pulled.complete:
        note(f"the job has not ended: {pulled.samples} samples so far; the same command brings the others")
    found = {"folder": str(pulled.folder), "samples": pulled.samples, "complete": pulled.complete}
    emit(json.dumps(found) if output is Format.JSON else str(pulled.folder))


app.command("pull")(export)
