"""`actograph queue`: show, pause and resume the queue."""

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from actograph.cli.flags.options import FormatOption, client_of
from actograph.cli.output import tables
from actograph.cli.output.output import Format, emit, note

if TYPE_CHECKING:
    from actograph.contract.resources import Queue, QueuePause

app = typer.Typer(no_args_is_help=True, help="Show, pause and resume the queue.")


@app.command()
def info(ctx: typer.Context, output: FormatOption = Format.TABLE) -> None:
    """Show waiting and running work, and active pauses."""
    with closing(client_of(ctx)) as client:
        queue = client.queue.get()
    emit(queue.model_dump_json() if output is Format.JSON else describe(queue))


@app.command()
def pause(
    ctx: typer.Context,
    reason: Annotated[str | None, typer.Option(help="Reason to show with the queue.")] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Pause the queue. Workers finish their current batch; jobs are still accepted."""
    with closing(client_of(ctx)) as client:
        queue = client.queue.pause(reason)
    emit(queue.model_dump_json() if output is Format.JSON else "paused")


@app.command()
def resume(ctx: typer.Context, output: FormatOption = Format.TABLE) -> None:
    """Resume the queue."""
    with closing(client_of(ctx)) as client:
        queue = client.queue.resume()
    if output is Format.JSON:
        emit(queue.model_dump_json())
        return
    emit("still paused" if queue.paused else "running")
    for other in queue.pauses:
        note(_pause_text(other))


def describe(queue: "Queue") -> str:
    """Describe the queue, one field per line; zero counts are left out."""
    fields = {
        "jobs": _counts(queue.jobs),
        "samples": _counts(queue.samples),
        "workers": _counts(queue.workers),
        "next": ", ".join(tables.shorten(job_id) for job_id in queue.next),
    }
    lines = [f"{'state:':<10} {'paused' if queue.paused else 'running'}"]
    lines += [f"{'':<10} {_pause_text(pause)}" for pause in queue.pauses]
    return "\n".join([*lines, tables.fields(fields, 10)]).rstrip()


def _pause_text(pause: "QueuePause") -> str:
    who = f" by {pause.by}" if pause.by else ""
    when = f", {tables.age(pause.since)} ago" if pause.since is not None else ""
    why = f": {pause.reason}" if pause.reason else ""
    return tables.clean(f"{pause.kind}{who}{when}{why}")


def _counts(numbers: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in numbers.items() if count)
