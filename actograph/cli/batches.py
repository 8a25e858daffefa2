"""`actograph batches`: files of chat and completion requests."""

import json
import sys
from pathlib import Path
from typing import Any

import typer

from actograph.cli.flags import LIST_FLAGS, IdArgument, QuietOption
from actograph.cli.shell import Shell, command, emit, note
from actograph.contract.errors import InvalidRequest, NotFound
from actograph.short_texts import size
from actograph.tables import Columns, clean

app = typer.Typer(no_args_is_help=True, help="Send files of requests, and read their answers.")

COLUMNS: Columns = (
    "batch id=id", "status", "endpoint", "model", "completed=request_counts.completed",
    "failed=request_counts.failed", "total=request_counts.total", "age=created_at",
)  # fmt: skip


@command(app)
def create(
    shell: Shell,
    file: Path = typer.Argument(help="JSONL with one request per line.", exists=True, dir_okay=False),
    *,
    window: str = typer.Option("24h", help="Time limit: 90m, 24h or 7d. Unfinished requests then expire."),
    priority: int | None = typer.Option(None, min=0, max=9, help="0 runs first, 9 last."),
    quiet: QuietOption = False,
) -> None:
    """Upload a file of requests and create a batch. The endpoint is the first line's url."""
    with file.open(encoding="utf-8") as stream:
        first = next((line for line in stream if line.strip()), "")
    try:
        endpoint = str(json.loads(first)["url"])
    except (ValueError, KeyError, TypeError):
        raise InvalidRequest(f"{file}: the first line is not a request with a url") from None
    options = {} if priority is None else {"priority": priority}
    uploaded = shell.client.files.upload(file, "batch", progress=True)
    batch = shell.client.batches.create(uploaded.id, endpoint, completion_window=window, **options)
    shell.rows([batch], COLUMNS, quiet=quiet)


@command(app, "ls", LIST_FLAGS)
def list_batches(shell: Shell, **shown: Any) -> None:
    """List batches, newest first."""
    shell.rows(shell.client.batches.list(), COLUMNS, **shown)


@command(app)
def show(shell: Shell, batch: IdArgument) -> None:
    """Show a batch and its invalid lines."""
    found = shell.client.batches.get(shell.id("batch", batch))
    shell.rows([found], COLUMNS)
    if not shell.json and found.errors:
        for error in found.errors.data:
            emit(f"line {error.line}: {clean(error.message)}" if error.line else clean(error.message))


@command(app)
def cancel(shell: Shell, batch: IdArgument) -> None:
    """Cancel a batch. Keeps finished requests."""
    shell.rows([shell.client.batches.cancel(shell.id("batch", batch))], COLUMNS)


@command(app, formats=False)
def results(
    shell: Shell,
    batch: IdArgument,
    *,
    errors: bool = typer.Option(False, "--errors", help="Failed requests instead of answers."),
    to: Path | None = typer.Option(None, "--output", "-o", help="File to write. Default: print."),
) -> None:
    """Print or save the answers of an ended batch, as JSONL."""
    found = shell.client.batches.get(shell.id("batch", batch))
    file_id = found.error_file_id if errors else found.output_file_id
    if file_id is None:
        what = "errors" if errors else "answers"
        raise NotFound(f"batch {found.id} is {found.status} and has no file of {what}")
    content = shell.client.files.content(file_id)
    if to is None:
        sys.stdout.write(content.decode())
    else:
        to.write_bytes(content)
        note(f"{to}: {size(len(content))}")
