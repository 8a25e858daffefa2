"""`actograph workers`: who holds a model, and what each is doing."""

from contextlib import closing
from typing import Annotated

import typer

from actograph.cli.flags.options import FormatOption, NoTruncOption, QuietOption, client_of
from actograph.cli.output import tables
from actograph.cli.output.output import Format, emit, emit_json_lines


def workers(
    ctx: typer.Context,
    *,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include offline workers.")] = False,
    quiet: QuietOption = False,
    no_trunc: NoTruncOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """List workers, newest first."""
    with closing(client_of(ctx)) as client:
        found = client.workers.list()
    shown = [worker for worker in found if everything or worker.status != "offline"]
    if quiet:
        for worker in shown:
            emit(tables.shorten(worker.id, full=no_trunc))
    elif output is Format.JSON:
        emit_json_lines(shown)
    else:
        headers = (
            "WORKER ID",
            "STATUS",
            "MODEL",
            "DEVICE",
            "HOST",
            "PID",
            "JOB ID",
            "HEARTBEAT",
            "AGE",
            "ERROR",
        )
        rows = [
            [
                tables.shorten(worker.id, full=no_trunc),
                str(worker.status),
                worker.model or "",
                worker.device or "",
                worker.hostname,
                str(worker.pid),
                tables.shorten(worker.job_id, full=no_trunc) if worker.job_id else "",
                tables.age(worker.last_heartbeat_at) + " ago",
                tables.age(worker.started_at),
                worker.error.message if worker.error else "",
            ]
            for worker in shown
        ]
        emit(tables.render(headers, rows, right=("PID",)))
