"""`actograph jobs`: submit, list, show, watch, cancel, retry, remove."""

import json
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.cli import exit_codes
from actograph.cli.flags import identifiers, job_spec
from actograph.cli.flags.add_flags import add_flags
from actograph.cli.flags.arguments import JobArgument, JobArguments
from actograph.cli.flags.job_flags import job_options
from actograph.cli.flags.options import (
    AllOption,
    FormatOption,
    LimitOption,
    NoTruncOption,
    QuietOption,
    SpecOnlyOption,
    client_of,
)
from actograph.cli.jobs.estimate import estimate_request
from actograph.cli.output import tables
from actograph.cli.output.each import each
from actograph.cli.output.output import Format, emit, emit_list, note
from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from actograph.client import Client

app = typer.Typer(no_args_is_help=True, help="Submit, follow and control jobs.")


@app.command()
@add_flags(job_options())
def submit(
    ctx: typer.Context,
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow the job to its end.")] = False,
    dry_run: SpecOnlyOption = False,
    output: FormatOption = Format.TABLE,
    **flags: Any,
) -> None:
    """Submit a job and print its id. Flags override the file."""
    request = job_spec.request_of(**flags)
    with closing(client_of(ctx)) as client:
        if dry_run:
            emit(json.dumps(estimate_request(client, request).spec, indent=2))
            return
        job = client.submissions.send(request, progress=True)
        emit(job.id if output is Format.TABLE else job.model_dump_json())
        if watch:
            _watch(client, job.id, output)


@app.command("ls")
def list_jobs(
    ctx: typer.Context,
    *,
    status: Annotated[
        str | None, typer.Option(help="Jobs of this status: queued, in_progress, completed, ...")
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="Jobs of this kind: evaluation, capture, extract, ...")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Jobs with this tag.")] = None,
    limit: LimitOption = 20,
    everything: AllOption = False,
    quiet: QuietOption = False,
    no_trunc: NoTruncOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """List jobs, newest first."""
    from actograph.cli.output import job_tables

    with closing(client_of(ctx)) as client:
        page_size = 100 if everything else min(100, limit + 1)
        found = client.jobs.list(status=status, kind=kind, tag=tag, page_size=page_size)
        table = partial(job_tables.render_jobs, full=no_trunc)
        emit_list(found, table, output, quiet=quiet, full=no_trunc, limit=None if everything else limit)


@app.command()
def show(
    ctx: typer.Context,
    job: JobArgument,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show a job and its current results."""
    from actograph.cli.output import job_tables

    with closing(client_of(ctx)) as client:
        found = client.jobs.get(identifiers.job(client, job))
        if output is Format.JSON:
            emit(found.model_dump_json())
            return
        emit(job_tables.describe(found))
        results = client.jobs.results(found.id) if found.progress.completed else None
        if results is not None and results.conditions:
            emit("")
            emit(job_tables.render_results(results, found.spec.get("num_fewshot")))


@app.command()
def watch(ctx: typer.Context, job: JobArgument, output: FormatOption = Format.TABLE) -> None:
    """Follow a job to its end. Exit status: 0 completed, 1 failed, 2 cancelled."""
    with closing(client_of(ctx)) as client:
        _watch(client, identifiers.job(client, job), output)


@app.command()
def cancel(ctx: typer.Context, jobs: JobArguments, output: FormatOption = Format.TABLE) -> None:
    """Cancel jobs. Finished samples are kept."""
    with closing(client_of(ctx)) as client:
        each(jobs, lambda typed: client.jobs.cancel(identifiers.job(client, typed)), output)


@app.command()
def retry(
    ctx: typer.Context,
    jobs: JobArguments,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow the job to its end.")] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Run the failed and missing samples of ended jobs again."""
    if watch and len(jobs) != 1:
        raise InvalidRequest("--watch follows one job; name one")
    with closing(client_of(ctx)) as client:
        each(jobs, lambda typed: client.jobs.retry(identifiers.job(client, typed)), output)
        if watch:
            _watch(client, identifiers.job(client, jobs[0]), output)


@app.command("rm")
def remove(
    ctx: typer.Context,
    jobs: JobArguments,
    *,
    include_pinned: Annotated[
        bool, typer.Option("--include-pinned", help="Delete pinned sessions too.")
    ] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Delete ended jobs with their samples and sessions."""
    with closing(client_of(ctx)) as client:
        each(
            jobs,
            lambda typed: client.jobs.delete(identifiers.job(client, typed), include_pinned=include_pinned),
            output,
        )


def _watch(client: "Client", job_id: str, output: Format = Format.TABLE) -> None:
    from actograph.cli.jobs import watching

    try:
        code = watching.watch(client, job_id, output)
    except KeyboardInterrupt:
        note(f"job {job_id} continues; follow it with: actograph jobs watch {tables.shorten(job_id)}")
        raise exit_codes.Ended(exit_codes.INTERRUPTED) from None
    if code:
        raise exit_codes.Ended(code)
