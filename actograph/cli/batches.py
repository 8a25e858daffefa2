"""`actograph batches`: files of chat and completion requests."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from actograph.cli.flags import (
    LIST_FLAGS,
    FormatOption,
    IdArgument,
    QuietOption,
    add_flags,
    connect,
    full_id,
)
from actograph.cli.output import Format, age, clean, emit, emit_list, note, size
from actograph.contract.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from actograph.client import Client

app = typer.Typer(no_args_is_help=True, help="Send files of requests, and read their answers.")

COLUMNS = {
    "BATCH ID": lambda batch: batch.id,
    "STATUS": lambda batch: batch.status,
    "ENDPOINT": lambda batch: batch.endpoint,
    "MODEL": lambda batch: batch.model,
    ">COMPLETED": lambda batch: batch.request_counts.completed,
    ">FAILED": lambda batch: batch.request_counts.failed,
    ">TOTAL": lambda batch: batch.request_counts.total,
    "AGE": lambda batch: age(batch.created_at),
}


@app.command()
def create(
    ctx: typer.Context,
    file: Path = typer.Argument(help="JSONL with one request per line.", exists=True, dir_okay=False),
    *,
    window: str = typer.Option("24h", help="Time limit: 90m, 24h or 7d. Unfinished requests then expire."),
    priority: int | None = typer.Option(None, min=0, max=9, help="0 runs first, 9 last."),
    quiet: QuietOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Upload a file of requests and create a batch. The endpoint is the first line's url."""
    with file.open(encoding="utf-8") as stream:
        first = next((line for line in stream if line.strip()), "")
    try:
        endpoint = str(json.loads(first)["url"])
    except (ValueError, KeyError, TypeError):
        raise InvalidRequest(f"{file}: the first line is not a request with a url") from None
    options = {} if priority is None else {"priority": priority}
    with connect(ctx) as client:
        uploaded = client.files.upload(file, "batch", progress=True)
        batch = client.batches.create(uploaded.id, endpoint, completion_window=window, **options)
    emit_list([batch], COLUMNS, output, quiet=quiet)


@app.command("ls")
@add_flags(LIST_FLAGS)
def list_batches(ctx: typer.Context, *, output: FormatOption = Format.TABLE, **shown: Any) -> None:
    """List batches, newest first."""
    with connect(ctx) as client:
        emit_list(client.batches.list(), COLUMNS, output, **shown)


@app.command()
def show(ctx: typer.Context, batch: IdArgument, output: FormatOption = Format.TABLE) -> None:
    """Show a batch and its invalid lines."""
    with connect(ctx) as client:
        found = client.batches.get(_batch_id(client, batch))
    emit_list([found], COLUMNS, output)
    if output is Format.TABLE and found.errors:
        for error in found.errors.data:
            emit(f"line {error.line}: {clean(error.message)}" if error.line else clean(error.message))


@app.command()
def cancel(ctx: typer.Context, batch: IdArgument, output: FormatOption = Format.TABLE) -> None:
    """Cancel a batch. Finished requests are kept."""
    with connect(ctx) as client:
        emit_list([client.batches.cancel(_batch_id(client, batch))], COLUMNS, output)


@app.command()
def results(
    ctx: typer.Context,
    batch: IdArgument,
    *,
    errors: bool = typer.Option(False, "--errors", help="Failed requests instead of answers."),
    to: Path | None = typer.Option(None, "--output", "-o", help="File to write. Default: print."),
) -> None:
    """Print or save the answers of an ended batch, as JSONL."""
    with connect(ctx) as client:
        found = client.batches.get(_batch_id(client, batch))
        file_id = found.error_file_id if errors else found.output_file_id
        if file_id is None:
            what = "errors" if errors else "answers"
            raise NotFound(f"batch {found.id} is {found.status} and has no file of {what}")
        content = client.files.content(file_id)
    if to is None:
        sys.stdout.write(content.decode())
    else:
        to.write_bytes(content)
        note(f"{to}: {size(len(content))}")


def _batch_id(client: "Client", typed: str) -> str:
    return full_id(typed, "batch", lambda _: client.batches.list())
