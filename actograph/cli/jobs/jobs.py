"""`actograph jobs`: submit, list, show, watch, cancel, retry, remove."""

from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.cli import exit_codes
from actograph.cli.flags import completion, dataset_flags, identifiers, job_flags
from actograph.cli.flags.options import (
    AllOption,
    FormatOption,
    LimitOption,
    NoTruncOption,
    QuietOption,
    client_of,
)
from actograph.cli.flags.scorer_flags import ScorerOption
from actograph.cli.output import tables
from actograph.cli.output.output import Format, emit, note
from actograph.contract.errors import ActographError, InvalidRequest

if TYPE_CHECKING:
    from actograph.client import Client
    from actograph.contract.resources import Deleted, Job, Session

app = typer.Typer(no_args_is_help=True, help="Submit jobs and follow them.")

JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="Id, or its beginning.", autocompletion=completion.jobs)
]
JobArguments = Annotated[
    list[str],
    typer.Argument(metavar="JOB...", help="Ids, or their beginnings.", autocompletion=completion.jobs),
]


@app.command()
def submit(
    ctx: typer.Context,
    *,
    spec: Annotated[
        str | None, typer.Argument(metavar="[SPEC.json|-]", help="Job as JSON; - reads standard input.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="evaluation, capture or extract.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Default: the one model that is served.", autocompletion=completion.models),
    ] = None,
    task: Annotated[str | None, typer.Option(help="gsm8k, another task, or a YAML file.")] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar=dataset_flags.METAVAR, help=dataset_flags.HELP)
    ] = None,
    fewshot_dataset: Annotated[
        str | None,
        typer.Option(metavar=dataset_flags.METAVAR, help="Where examples come from. Default: the dataset."),
    ] = None,
    prompt: Annotated[
        list[str] | None, typer.Option(help="Prompt of a capture or extract job; give it again for more.")
    ] = None,
    text_field: Annotated[
        str | None, typer.Option(help="Field of the dataset's rows that an extraction reads.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Most rows of the dataset to take.")] = None,
    offset: Annotated[int | None, typer.Option(help="Rows of the dataset to skip first.")] = None,
    num_fewshot: Annotated[int | None, typer.Option(help="Few-shot examples.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Answers to every problem.")] = None,
    mode: Annotated[str | None, typer.Option(help="no_tools or with_tools.")] = None,
    tool_format: Annotated[
        str | None, typer.Option(help="template (the model's own) or annotations (<<48/2=24>>).")
    ] = None,
    max_turns: Annotated[int | None, typer.Option(help="Most turns of the model with tools.")] = None,
    condition: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:FIELD=VALUE]",
            help="A variant: `plain`, `EP02:suffix=This matters.`, `calc:mode=with_tools`, or JSON. Again "
            "for more; the first is the baseline. Fields: system prefix suffix mode temperature top_p top_k.",
        ),
    ] = None,
    conditions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json", help='Variants from a file: a list of them, or {"stimuli": {NAME: SUFFIX}}.'
        ),
    ] = None,
    scorer: ScorerOption = None,
    thinking: Annotated[
        bool | None, typer.Option("--thinking/--no-thinking", help="Let the model think.")
    ] = None,
    chat_template: Annotated[
        bool | None,
        typer.Option("--chat-template/--no-chat-template", help="Default: use it where the model has one."),
    ] = None,
    capture: Annotated[
        str | None,
        typer.Option(metavar="POINTS[@LAYERS]", help="What to keep, such as attn_in,mlp_in@8,12,16."),
    ] = None,
    points: Annotated[
        list[str] | None,
        typer.Option(help="Hook points to keep: resid_post, attn_in, ... (commas or repeated)."),
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="all, a slice such as 8:20:4, or numbers: 8,12,16.")
    ] = None,
    hooks: Annotated[
        list[str] | None, typer.Option(help="Hooks by name, such as mlp_in.3 (commas or repeated).")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens to generate per sample.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus of this probability.")] = None,
    top_k: Annotated[int | None, typer.Option(help="The k likeliest tokens.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the job.")] = None,
    truncate: Annotated[
        bool | None,
        typer.Option("--truncate/--no-truncate", help="Extraction: cut longer texts to the model's context."),
    ] = None,
    layers_per_pass: Annotated[int | None, typer.Option(help="Deprecated, ignored.", hidden=True)] = None,
    priority: Annotated[int | None, typer.Option(help="0 is served first, 9 last.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Tag; give it again for more.")] = None,
    expires_after: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="Delete each session 12h, 7d, ... after it was made, or `never`."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow the job to its end.")] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Submit a job and print its id. Flags win over what the file says."""
    flags = {name: value for name, value in locals().items() if name not in ("ctx", "watch", "output")}
    body, uploads = job_flags.body_of(**flags)
    with closing(client_of(ctx)) as client:
        complete(client, body)
        job_flags.upload(client, body, uploads)
        job = client.submit(body)
        emit(job.id if output is Format.TABLE else job.model_dump_json())
        if watch:
            _watch(client, job.id, output)


def complete(client: "Client", body: dict[str, Any]) -> None:
    """Name the served model where the job names none, and find mistakes before anything is sent.

    Raises:
        InvalidRequest: naming every field at fault.
    """
    if "model" not in body:
        body["model"] = _only_model(client)
    job_flags.check(body)


@app.command("ls")
def list_jobs(
    ctx: typer.Context,
    *,
    status: Annotated[str | None, typer.Option(help="queued, in_progress, completed, failed, ...")] = None,
    kind: Annotated[str | None, typer.Option(help="evaluation, capture or extract.")] = None,
    tag: Annotated[str | None, typer.Option(help="Jobs with this tag.")] = None,
    limit: LimitOption = 20,
    everything: AllOption = False,
    quiet: QuietOption = False,
    no_trunc: NoTruncOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """List jobs, the newest first."""
    from actograph.cli.output import job_tables

    with closing(client_of(ctx)) as client:
        page_size = 100 if everything else min(100, limit + 1)
        found = client.jobs.list(status=status, kind=kind, tag=tag, page_size=page_size)
        jobs = list(found if everything else islice(found, limit))
        if quiet:
            for job in jobs:
                emit(tables.shorten(job.id, full=no_trunc))
        elif output is Format.JSON:
            for job in jobs:
                emit(job.model_dump_json())
        else:
            emit(job_tables.render_jobs(jobs, full=no_trunc))
            if not everything and next(found, None) is not None:
                note(f"the newest {limit}; more with --all or --limit")


@app.command()
def show(
    ctx: typer.Context,
    job: JobArgument,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show one job, and its results so far."""
    from actograph.cli.output import job_tables

    with closing(client_of(ctx)) as client:
        found = client.jobs.get(resolve(client, job))
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
        _watch(client, resolve(client, job), output)


@app.command()
def cancel(ctx: typer.Context, jobs: JobArguments, output: FormatOption = Format.TABLE) -> None:
    """End jobs; what finished is kept."""
    with closing(client_of(ctx)) as client:
        each(jobs, lambda typed: client.jobs.cancel(resolve(client, typed)), output)


@app.command()
def retry(
    ctx: typer.Context,
    jobs: JobArguments,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow the one job to its end.")] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Run what failed or was never run in ended jobs; completed samples are kept."""
    if watch and len(jobs) != 1:
        raise InvalidRequest("--watch follows one job; name one")
    with closing(client_of(ctx)) as client:
        each(jobs, lambda typed: client.jobs.retry(resolve(client, typed)), output)
        if watch:
            _watch(client, resolve(client, jobs[0]), output)


@app.command("rm")
def remove(
    ctx: typer.Context,
    jobs: JobArguments,
    *,
    include_pinned: Annotated[
        bool, typer.Option("--include-pinned", help="Even where some of their sessions are pinned.")
    ] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Delete ended jobs with their samples and sessions."""
    with closing(client_of(ctx)) as client:
        each(
            jobs,
            lambda typed: client.jobs.delete(resolve(client, typed), include_pinned=include_pinned),
            output,
        )


def each(
    typed: list[str], act: "Callable[[str], Job | Session | Deleted]", output: Format = Format.TABLE
) -> None:
    """Act on each item and print its id, or all of it; failures are told and the others still done."""
    failed = exit_codes.OK
    for name in typed:
        try:
            done = act(name)
            emit(done.model_dump_json() if output is Format.JSON else done.id)
        except ActographError as error:
            note(f"{name}: {error}")
            failed = max(failed, exit_codes.of_error(error))
    if failed:
        raise exit_codes.Ended(failed)


def _watch(client: "Client", job_id: str, output: Format = Format.TABLE) -> None:
    from actograph.cli.jobs import watching

    try:
        watching.follow(client, client.jobs.get(job_id))
    except KeyboardInterrupt:
        note(f"job {job_id} goes on; follow it with: actograph jobs watch {tables.shorten(job_id)}")
        raise exit_codes.Ended(exit_codes.INTERRUPTED) from None
    code = watching.conclude(client, job_id, output)
    if code:
        raise exit_codes.Ended(code)


def resolve(client: "Client", typed: str) -> str:
    """The whole id of the job that was typed."""
    return identifiers.job(client, typed)


def _only_model(client: "Client") -> str:
    """The model that is meant where none is named. Raises InvalidRequest."""
    served: list[Any] = client.models.list()
    if len(served) != 1:
        names = ", ".join(model.id for model in served) or "none"
        raise InvalidRequest(f"say which model with --model; served: {names}", param="model")
    return str(served[0].id)
