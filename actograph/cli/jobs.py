"""`actograph jobs`: submit, list, show, watch, cancel, retry, remove, read samples, export."""

import json
import shutil
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from actograph.cli import flags, job_flags, job_tables
from actograph.cli.flags import FormatOption, IdArgument, IdArguments, WatchOption, connect, job_id
from actograph.cli.output import (
    ERROR,
    INTERRUPTED,
    Ended,
    Format,
    age,
    clean,
    cut,
    each,
    emit,
    emit_item,
    emit_list,
    end,
    job_status_code,
    note,
    shorten,
    yes_no,
)
from actograph.contract.errors import InvalidRequest
from actograph.progress import duration

if TYPE_CHECKING:
    from actograph.client import Client
    from actograph.client.jobs import JobHandle
    from actograph.contract.resources import Sample

app = typer.Typer(no_args_is_help=True, help="Submit, follow and control jobs.")


class Activations(StrEnum):
    NONE = "none"
    META = "meta"
    SAMPLED = "sampled"
    ALL = "all"


@app.command(
    epilog=flags.examples(
        "actograph jobs submit --task gsm8k --dataset test.jsonl --capture resid_post@all --watch",
        "actograph jobs submit --prompt 'Once upon a time' --max-tokens 50 --capture resid_post.1",
        "actograph jobs submit job.json --tag night --priority 8",
    )
)
@flags.add_flags(job_flags.job_options())
def submit(
    ctx: typer.Context, *, watch: WatchOption = False, output: FormatOption = Format.TABLE, **given: Any
) -> None:
    """Submit a job and print its id. Flags override the file."""
    run(ctx, output, watch=watch, **given)


def run(ctx: typer.Context, output: Format, *, watch: bool, **given: Any) -> None:
    """Submit the job of flags, and follow it to its end if `watch`."""
    body, uploads = job_flags.body_of(**given)
    with connect(ctx) as client:
        job_flags.complete(client, body)
        job_flags.upload(client, body, uploads)
        job = client.submit(body)
        emit(job.id if output is Format.TABLE else job.model_dump_json())
        if watch:
            follow(client, job.id, output)


@flags.add_flags(
    job_flags.job_options(without=("spec", "kind", "task", "prompt", "text_field", "truncate", "mode"))
)
def evaluate(
    ctx: typer.Context,
    task: str = typer.Argument(metavar="TASK|TASK.yaml", help="Name of a task, or a YAML file."),
    *,
    watch: bool = typer.Option(True, help="Follow the job to its end."),
    output: FormatOption = Format.TABLE,
    **given: Any,
) -> None:
    """Run a task and print its scores: the name of a task, or a YAML file.

    With two or more conditions, a comparison with the first one follows. Built-in tasks read their rows
    from the Hugging Face Hub unless --dataset is given.
    """
    run(ctx, output, watch=watch, task=task, kind="evaluation", **given)


@app.command()
def rescore(
    ctx: typer.Context,
    job: IdArgument,
    *,
    scorer: flags.ScorersOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Score a job's stored completions with other scorers, without a worker.

    The first scorer decides `correct`. Scores of other scorers are kept.
    """
    if not scorer:
        raise InvalidRequest("--scorer is missing; for example --scorer numeric")
    with connect(ctx) as client:
        scored = client.jobs.get(job_id(client, job))
        results = scored.rescore(flags.scorers_of(scorer))
    emit_item(results, output, lambda one: job_tables.results_table(one, scored.spec.get("num_fewshot")))


@app.command("ls")
@flags.add_flags(flags.LIST_FLAGS)
def list_jobs(
    ctx: typer.Context,
    *,
    status: str | None = typer.Option(None, help="Jobs of this status: queued, in_progress, completed, ..."),
    kind: str | None = typer.Option(None, help="Jobs of this kind: evaluation, capture, ..."),
    tag: str | None = typer.Option(None, help="Jobs with this tag."),
    output: FormatOption = Format.TABLE,
    **shown: Any,
) -> None:
    """List jobs, newest first."""
    columns = {
        "JOB ID": lambda job: job.id,
        "KIND": lambda job: job.kind,
        "MODEL": lambda job: job.model,
        "STATUS": job_tables.status_text,
        "ETA": lambda job: duration(job.eta_seconds) if job.eta_seconds is not None else "",
        ">PRIORITY": lambda job: job.priority,
        "AGE": lambda job: age(job.created_at),
        "TAGS": lambda job: ",".join(job.tags),
    }
    with connect(ctx) as client:
        emit_list(client.jobs.list(status=status, kind=kind, tag=tag), columns, output, **shown)


@app.command()
def show(ctx: typer.Context, job: IdArgument, output: FormatOption = Format.TABLE) -> None:
    """Show a job and its current results."""
    with connect(ctx) as client:
        found = client.jobs.get(job_id(client, job))
        if output is Format.JSON:
            emit(found.model_dump_json())
            return
        emit(job_tables.describe_job(found))
        results = found.results() if found.progress.completed else None
        if results is not None and results.conditions:
            emit("\n" + job_tables.results_table(results, found.spec.get("num_fewshot")))


@app.command()
@flags.add_flags({name: option for name, option in flags.LIST_FLAGS.items() if name != "quiet"})
def samples(
    ctx: typer.Context,
    job: IdArgument,
    *,
    status: str | None = typer.Option(None, help="Samples of this status: pending, completed, failed, ..."),
    condition: str | None = typer.Option(None, help="Samples of this condition."),
    correct: bool | None = typer.Option(None, "--correct/--incorrect", help="Verdict of the first scorer."),
    output: FormatOption = Format.TABLE,
    **shown: Any,
) -> None:
    """List a job's samples: texts, verdicts and errors. JSON includes all fields."""
    width = max(100, shutil.get_terminal_size((120, 24)).columns)
    columns = {
        ">INDEX": lambda sample: sample.index,
        "CONDITION": lambda sample: sample.condition,
        ">EPOCH": lambda sample: sample.epoch,
        "STATUS": lambda sample: sample.status,
        "CORRECT": lambda sample: yes_no(verdict(sample)),
        ">TOKENS": lambda sample: sample.generated_tokens,
        "SESSION ID": lambda sample: sample.session_id,
        "COMPLETION OR ERROR": lambda sample: cut(_text(sample), width),
    }
    with connect(ctx) as client:
        found = client.jobs.get(job_id(client, job)).samples(status=status, condition=condition)
        matching = (sample for sample in found if correct is None or verdict(sample) is correct)
        emit_list(matching, columns, output, width=width, **shown)


@app.command()
def watch(ctx: typer.Context, job: IdArgument, output: FormatOption = Format.TABLE) -> None:
    """Follow a job to its end. Exit status: 0 completed, 1 failed, 2 cancelled."""
    with connect(ctx) as client:
        follow(client, job_id(client, job), output)


@app.command()
def cancel(ctx: typer.Context, jobs: IdArguments, output: FormatOption = Format.TABLE) -> None:
    """Cancel jobs. Finished samples are kept."""
    with connect(ctx) as client:
        each(jobs, lambda typed: client.jobs.cancel(job_id(client, typed)), output)


@app.command()
def retry(ctx: typer.Context, jobs: IdArguments, output: FormatOption = Format.TABLE) -> None:
    """Run the failed and missing samples of ended jobs again."""
    with connect(ctx) as client:
        each(jobs, lambda typed: client.jobs.retry(job_id(client, typed)), output)


@app.command("rm")
def remove(
    ctx: typer.Context,
    jobs: IdArguments,
    *,
    include_pinned: bool = typer.Option(False, "--include-pinned", help="Delete pinned sessions too."),
    output: FormatOption = Format.TABLE,
) -> None:
    """Delete ended jobs with their samples and sessions."""
    with connect(ctx) as client:
        each(
            jobs,
            lambda typed: client.jobs.delete(job_id(client, typed), include_pinned=include_pinned),
            output,
        )


@app.command(epilog=flags.examples("actograph jobs export job_3fa2 --out night-run --activations sampled"))
def export(
    ctx: typer.Context,
    job: IdArgument,
    *,
    out: Path | None = typer.Option(None, "--out", "-o", help="Folder. Default: the job id."),
    activations: Activations = typer.Option(
        Activations.META, help="meta: shapes and sizes; sampled: 50 features of each row; all: every file."
    ),
    output: FormatOption = Format.TABLE,
) -> None:
    """Download a job's results folder, also while the job runs."""
    with connect(ctx) as client:
        found = client.jobs.get(job_id(client, job))
        folder = out or Path(found.id)
        try:
            pulled = found.pull_results(folder, activations=activations.value, progress=True)
        except KeyboardInterrupt:
            note(f"interrupted; {folder} is incomplete: run the same command again")
            raise Ended(INTERRUPTED) from None
    if not pulled.complete:
        note(f"the job has not ended: {pulled.samples} samples so far; run this again for the others")
    shown = {"folder": str(pulled.folder), "samples": pulled.samples, "complete": pulled.complete}
    emit(json.dumps(shown) if output is Format.JSON else str(pulled.folder))


@app.command(
    epilog=flags.examples(
        "actograph jobs compare job_3fa2",
        "actograph jobs compare job_3fa2 --activations EP02 --positions last_prompt --store-as career",
    )
)
def compare(
    ctx: typer.Context,
    job: IdArgument,
    *,
    baseline: str | None = typer.Option(None, help="Baseline condition. Default: the first."),
    level: float = typer.Option(0.95, help="Coverage of the intervals."),
    activations: str | None = typer.Option(
        None, metavar="CONDITION", help="Compare this condition's activations with the baseline's."
    ),
    hooks: list[str] = typer.Option([], help="Hooks to compare (commas or repeated). Default: all."),
    positions: str = typer.Option(
        "all", help="Tokens to average: all, generated, last, last_prompt, or a segment."
    ),
    limit: int | None = typer.Option(None, min=1, help="Maximum number of pairs."),
    store_as: str | None = typer.Option(None, metavar="NAME", help="Store the mean differences as vectors."),
    output: FormatOption = Format.TABLE,
) -> None:
    """Compare a job's conditions problem by problem: scores and lengths, or activations."""
    if activations is None and (hooks or store_as or limit):
        raise InvalidRequest("--hooks, --limit and --store-as need --activations CONDITION")
    with connect(ctx) as client:
        compared = client.jobs.get(job_id(client, job))
        if activations is None:
            scores = compared.comparison(baseline=baseline, level=level)
            emit_item(scores, output, job_tables.scores_table)
            return
        found = compared.compare_activations(
            activations,
            baseline=baseline,
            hooks=flags.names(hooks),
            positions=positions,
            limit=limit,
            store_as=store_as,
        )
    emit_item(found, output, job_tables.activations_table)


@flags.add_flags(job_flags.job_options())
def estimate(
    ctx: typer.Context,
    *,
    prompt_tokens: int | None = typer.Option(None, min=1, help="Assumed length of every prompt."),
    output: FormatOption = Format.TABLE,
    **given: Any,
) -> None:
    """Estimate the memory and disk of a job. Exit status 1: it does not fit."""
    body, uploads = job_flags.body_of(**given)
    with connect(ctx) as client:
        job_flags.complete(client, body)
        sent: list[str] = []
        try:
            sent = job_flags.upload(client, body, uploads)
            estimated = client.jobs.estimate(body, prompt_tokens=prompt_tokens)
        finally:
            for file_id in sent:
                client.files.delete(file_id)
    emit_item(estimated, output, job_tables.describe_estimate)
    if estimated.fits is False:
        raise Ended(ERROR)


def follow(client: "Client", job_id: str, output: Format) -> None:
    """Show a job's progress until it ends, then its results. Ends the command with the job's exit status.

    With several conditions, a comparison with the first one follows, as JSON on a line of its own.
    """
    try:
        job = client.jobs.wait(job_id, progress=True)
        if job.progress.completed:
            _show_results(job, output)
    except KeyboardInterrupt:
        note(f"job {job_id} continues; follow it with: actograph jobs watch {shorten(job_id)}")
        raise Ended(INTERRUPTED) from None
    if job.progress.failed and job.status != "failed":
        note(
            f"{job.progress.failed} of {job.progress.total} samples failed; "
            f"the reasons: actograph jobs samples {shorten(job.id)} --status failed"
        )
    reason = f": {clean(job.error.message)}" if job.error is not None else ""
    note(f"job {job.id} {job.status}{reason}")
    end(job_status_code(job.status))


def _show_results(job: "JobHandle", output: Format) -> None:
    results = job.results()
    if results.conditions or output is Format.JSON:
        emit_item(results, output, lambda one: job_tables.results_table(one, job.spec.get("num_fewshot")))
    if job.kind == "evaluation" and len(job.spec.get("conditions") or ()) > 1:
        emit_item(job.comparison(), output, lambda found: "\n" + job_tables.scores_table(found))
    if truncated := sum(condition.truncated for condition in results.conditions.values()):
        # mode prefill generates nothing: its texts were too long
        what = (
            "texts were cut to the model's context"
            if (job.spec.get("capture") or {}).get("mode") == "prefill"
            else "samples ended at max_tokens"
        )
        note(f"{truncated} of {job.progress.completed} {what}")
    for name, condition in results.conditions.items():
        if (use := condition.tool_use) is not None:
            note(
                f"{name}: {use.calling} of {use.samples} samples called tools, {use.calls} calls, "
                f"{use.errors} of them answered with an error"
            )


def verdict(sample: "Sample") -> bool | None:
    """Return the first scorer's verdict; None if the sample has no score."""
    first = next(iter(sample.scores.values()), None)
    return None if first is None else first.value == 1.0


def _text(sample: "Sample") -> str:
    if sample.error is not None:
        return f"{sample.error.type}: {sample.error.message}"
    return sample.completion or ""
