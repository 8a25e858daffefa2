"""`actograph jobs export`: a job's results as a folder of files."""

import json
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from actograph.cli import exit_codes
from actograph.cli.flags import identifiers
from actograph.cli.flags.arguments import JobArgument
from actograph.cli.flags.options import FormatOption, client_of
from actograph.cli.output.output import Format, emit, note


class Activations(StrEnum):
    NONE = "none"
    META = "meta"
    SAMPLED = "sampled"
    ALL = "all"


def export(
    ctx: typer.Context,
    job: JobArgument,
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Folder. Default: the job id."),
    ] = None,
    activations: Annotated[
        Activations,
        typer.Option(help="meta: shapes and sizes; sampled: 50 features of each row; all: every file."),
    ] = Activations.META,
    output: FormatOption = Format.TABLE,
) -> None:
    """Download a job's results folder. Resumes an interrupted download, and works while the job runs."""
    from actograph.progress import meter

    with closing(client_of(ctx)) as client:
        job_id = identifiers.job(client, job)
        folder = out or Path(job_id)
        with meter() as update:
            try:
                pulled = client.jobs.pull_results(
                    job_id,
                    folder,
                    activations=activations.value,
                    on_progress=update,
                )
            except KeyboardInterrupt:
                note(f"interrupted; run the same command again to continue in {folder}")
                raise exit_codes.Ended(exit_codes.INTERRUPTED) from None
    if not pulled.complete:
        note(f"the job has not ended: {pulled.samples} samples so far; run this again for the others")
    found = {"folder": str(pulled.folder), "samples": pulled.samples, "complete": pulled.complete}
    emit(json.dumps(found) if output is Format.JSON else str(pulled.folder))
