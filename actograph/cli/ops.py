"""`actograph workers`, `queue`, `store` and `smoke`: for those who run a service."""

import json
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from actograph.cli.flags import DryRunOption, FormatOption, GlobalOptions, QuietOption, connect
from actograph.cli.output import (
    ERROR,
    Ended,
    Format,
    age,
    clean,
    emit,
    emit_item,
    emit_list,
    fields,
    note,
    render,
    shorten,
    size,
    table,
)

if TYPE_CHECKING:
    from actograph.contract.operations import Queue, QueuePause, StoreGc
    from actograph.smoke.smoke import Step

queue = typer.Typer(no_args_is_help=True, help="Show, pause and resume the queue.")
store = typer.Typer(no_args_is_help=True, help="Measure, clean and verify the artifact store.")


def workers(
    ctx: typer.Context,
    *,
    everything: bool = typer.Option(False, "--all", "-a", help="Include offline workers."),
    quiet: QuietOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """List workers, newest first."""
    columns = {
        "WORKER ID": lambda worker: worker.id,
        "STATUS": lambda worker: worker.status,
        "MODEL": lambda worker: worker.model,
        "DEVICE": lambda worker: worker.device,
        "HOST": lambda worker: worker.hostname,
        ">PID": lambda worker: worker.pid,
        "JOB ID": lambda worker: worker.job_id,
        "HEARTBEAT": lambda worker: f"{age(worker.last_heartbeat_at)} ago",
        "AGE": lambda worker: age(worker.started_at),
        "ERROR": lambda worker: worker.error and worker.error.message,
    }
    with connect(ctx) as client:
        shown = [worker for worker in client.workers.list() if everything or worker.status != "offline"]
    emit_list(shown, columns, output, quiet=quiet, everything=True)


@queue.command()
def info(ctx: typer.Context, output: FormatOption = Format.TABLE) -> None:
    """Show waiting and running work, and active pauses."""
    with connect(ctx) as client:
        found = client.queue.get()
    emit_item(found, output, _describe)


@queue.command()
def pause(
    ctx: typer.Context,
    reason: str | None = typer.Option(None, help="Reason to show with the queue."),
    output: FormatOption = Format.TABLE,
) -> None:
    """Pause the queue. Workers finish their running samples; jobs are still accepted."""
    with connect(ctx) as client:
        paused = client.queue.pause(reason)
    emit_item(paused, output, lambda _: "paused")


@queue.command()
def resume(ctx: typer.Context, output: FormatOption = Format.TABLE) -> None:
    """Resume the queue."""
    with connect(ctx) as client:
        found = client.queue.resume()
    emit_item(found, output, lambda queue: "still paused" if queue.paused else "running")
    for other in found.pauses:
        note(_pause_text(other))


def _describe(found: "Queue") -> str:
    """Describe the queue, one field per line; zero counts are left out."""
    numbers = {"jobs": found.jobs, "samples": found.samples, "workers": found.workers}
    values = {
        name: ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        for name, counts in numbers.items()
    }
    values["next"] = ", ".join(shorten(job_id) for job_id in found.next)
    lines = [f"{'state:':<10} {'paused' if found.paused else 'running'}"]
    lines += [f"{'':<10} {_pause_text(pause)}" for pause in found.pauses]
    return "\n".join([*lines, fields(values, 10)]).rstrip()


def _pause_text(pause: "QueuePause") -> str:
    who = f" by {pause.by}" if pause.by else ""
    when = f", {age(pause.since)} ago" if pause.since is not None else ""
    why = f": {pause.reason}" if pause.reason else ""
    return clean(f"{pause.kind}{who}{when}{why}")


@store.command()
def usage(ctx: typer.Context, output: FormatOption = Format.TABLE) -> None:
    """Show stored bytes per owner, and the quotas."""
    with connect(ctx) as client:
        found = client.store.usage()
    columns = {
        "OWNER": lambda used: "all" if used is found else used.owner,
        ">SESSIONS": lambda used: used.sessions,
        ">SIZE": lambda used: size(used.session_bytes),
        ">FILES": lambda used: used.files,
        ">FILE SIZE": lambda used: size(used.file_bytes),
        ">DELETING": lambda used: size(used.deleting_bytes),
        ">LEFT": lambda used: "no limit" if used.available_bytes is None else size(used.available_bytes),
    }
    emit_item(found, output, lambda used: table(columns, [*used.owners, used]))


@store.command()
def gc(ctx: typer.Context, *, dry_run: DryRunOption = False, output: FormatOption = Format.TABLE) -> None:
    """Delete expired sessions and uploads, files of deleted ones, and leftovers of killed processes.

    Files that are not in the index are kept; `actograph store verify` lists them.
    """
    pages: list[StoreGc] = []
    with connect(ctx) as client:
        for page in client.store.collect_garbage(dry_run=dry_run):
            pages.append(page)
            if output is Format.JSON:
                emit(page.model_dump_json())
    if output is Format.TABLE:
        emit(_gc_table(pages, dry_run=dry_run))


def _gc_table(pages: "Sequence[StoreGc]", *, dry_run: bool) -> str:
    expired = sum(page.expired_sessions for page in pages)
    rows: list[list[object]] = [
        ["expired sessions", expired, size(sum(page.expired_bytes for page in pages))],
        ["expired files", sum(page.expired_files for page in pages), ""],
        ["temporary files and unfinished uploads", sum(page.leftovers for page in pages), ""],
    ]
    return render(("TO BE REMOVED" if dry_run else "REMOVED", ">COUNT", ">SIZE"), rows)


@store.command()
def verify(
    ctx: typer.Context,
    *,
    sample: float = typer.Option(1.0, min=0.000001, max=1.0, help="Share of stored data to read."),
    seed: int | None = typer.Option(None, min=0, help="Seed that selects the share. Default: random."),
    output: FormatOption = Format.TABLE,
) -> None:
    """Verify stored files against the index, by checksum.

    Lists missing, damaged and orphaned files, and changes nothing. Exit status 1: there are problems.
    """
    from actograph.progress import meter

    chosen = secrets.randbelow(2**31) if seed is None else seed
    columns = {"ID": lambda one: one.id, "PROBLEM": lambda one: one.problem, "DETAIL": lambda one: one.detail}
    problems = []
    checked = read = 0
    try:
        with connect(ctx) as client, meter("items") as update:
            for page in client.store.verify(sample=sample, seed=chosen):
                checked, read = checked + page.checked, read + page.bytes
                problems += page.problems
                update("checking", checked, max(page.total, checked) if page.next else checked, len(problems))
    finally:
        # also after an interruption
        if problems:
            emit_list(problems, columns, output, everything=True)
    note(f"checked {checked}, {size(read)}, {len(problems)} problem{'' if len(problems) == 1 else 's'}")
    if problems:
        kinds = Counter(problem.problem for problem in problems)
        note(", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
        raise Ended(ERROR)


def smoke(
    ctx: typer.Context,
    url: Annotated[
        str | None,
        typer.Argument(help="URL of the service, with the path of a proxy. (default: that of --url)"),
    ] = None,
    *,
    model: Annotated[
        str | None, typer.Option(help="Expected model. (default: the first served model)")
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for each job.")] = 600.0,
    output: FormatOption = Format.TABLE,
) -> None:
    """Test a running service: capture, read the activations back, evaluate, and clean up.

    Prints one line per step. The exit status names the kind of failure; see docs/operate/running.md.
    """
    from actograph.smoke.failures import SmokeFailed
    from actograph.smoke.smoke import Smoke

    if url is not None:
        ctx.ensure_object(GlobalOptions).url = url

    def report(step: "Step") -> None:
        if output is Format.JSON:
            emit(json.dumps(asdict(step)))
        else:
            emit(f"{step.outcome:<6} {step.step:<10} {step.seconds:7.2f} s  {step.detail}")

    with connect(ctx) as client:
        try:
            Smoke(client, report, model=model, timeout=timeout).run()
        except SmokeFailed as failure:
            raise Ended(int(failure.kind)) from failure
