"""`actograph workers`: the workers, their models and jobs."""

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from actograph.cli.flags.options import FormatOption, NoTruncOption, QuietOption, client_of
from actograph.cli.output import tables
from actograph.cli.output.output import Format, emit_list

if TYPE_CHECKING:
    from actograph.contract.resources import Worker

HEADERS = ("WORKER ID", "STATUS", "MODEL", "DEVICE", "HOST", "PID", "JOB ID", "HEARTBEAT", "AGE", "ERROR")


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
    emit_list(shown, partial(_table, full=no_trunc), output, quiet=quiet, full=no_trunc)


def _table(workers: "Sequence[Worker]", *, full: bool) -> str:
    rows = [
        [
            tables.shorten(worker.id, full=full),
            str(worker.status),
            worker.model or "",
            worker.device or "",
            worker.hostname,
            str(worker.pid),
            tables.shorten(worker.job_id, full=full) if worker.job_id else "",
            tables.age(worker.last_heartbeat_at) + " ago",
            tables.age(worker.started_at),
            worker.error.message if worker.error else "",
        ]
        for worker in workers
    ]
    return tables.render(HEADERS, rows, right=("PID",))
