"""`actograph batches`: files of chat and completion requests."""

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from actograph.cli.flags import identifiers
from actograph.cli.flags.arguments import BatchArgument
from actograph.cli.flags.options import FormatOption, NoTruncOption, QuietOption, client_of
from actograph.cli.output import tables
from actograph.cli.output.output import Format, emit, emit_list, note
from actograph.contract.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from actograph.contract.batches import Batch

app = typer.Typer(no_args_is_help=True, help="Send files of requests, and read their answers.")


@app.command()
def create(
    ctx: typer.Context,
    file: Annotated[
        Path, typer.Argument(help="JSONL with one request per line.", exists=True, dir_okay=False)
    ],
    *,
    window: Annotated[
        str, typer.Option(help="Time limit: 90m, 24h or 7d. Unfinished requests then expire.")
    ] = "24h",
    priority: Annotated[int | None, typer.Option(min=0, max=9, help="0 runs first, 9 last.")] = None,
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
    with closing(client_of(ctx)) as client:
        uploaded = client.files.upload(file, "batch", progress=True)
        batch = client.batches.create(uploaded.id, endpoint, completion_window=window, **options)
    emit_list([batch], _table, output, quiet=quiet)


@app.command("ls")
def list_batches(
    ctx: typer.Context,
    *,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of batches.")] = 20,
    quiet: QuietOption = False,
    no_trunc: NoTruncOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """List batches, newest first."""
    with closing(client_of(ctx)) as client:
        table = partial(_table, full=no_trunc)
        emit_list(client.batches.list(), table, output, quiet=quiet, full=no_trunc, limit=limit)


@app.command()
def show(ctx: typer.Context, batch: BatchArgument, output: FormatOption = Format.TABLE) -> None:
    """Show a batch and its invalid lines."""
    with closing(client_of(ctx)) as client:
        found = client.batches.get(identifiers.batch(client, batch))
    emit_list([found], _table, output)
    if output is Format.TABLE:
        for error in found.errors.data if found.errors else ():
            where = f"line {error.line}: " if error.line else ""
            emit(f"{where}{tables.clean(error.message)}")


@app.command()
def cancel(ctx: typer.Context, batch: BatchArgument, output: FormatOption = Format.TABLE) -> None:
    """Cancel a batch. Finished requests are kept."""
    with closing(client_of(ctx)) as client:
        emit_list([client.batches.cancel(identifiers.batch(client, batch))], _table, output)


@app.command()
def results(
    ctx: typer.Context,
    batch: BatchArgument,
    *,
    errors: Annotated[bool, typer.Option("--errors", help="Failed requests instead of answers.")] = False,
    to: Annotated[Path | None, typer.Option("--output", "-o", help="File to write. Default: print.")] = None,
) -> None:
    """Print or save the answers of an ended batch, as JSONL."""
    with closing(client_of(ctx)) as client:
        found = client.batches.get(identifiers.batch(client, batch))
        file_id = found.error_file_id if errors else found.output_file_id
        if file_id is None:
            what = "errors" if errors else "answers"
            raise NotFound(f"batch {found.id} is {found.status} and has no file of {what}")
        content = client.files.content(file_id)
    if to is None:
        sys.stdout.write(content.decode())
    else:
        to.write_bytes(content)
        note(f"{to}: {tables.size(len(content))}")


def _table(batches: "Sequence[Batch]", *, full: bool = True) -> str:
    headers = ("BATCH ID", "STATUS", "ENDPOINT", "MODEL", "COMPLETED", "FAILED", "TOTAL", "AGE")
    rows = [
        [
            tables.shorten(batch.id, full=full),
            str(batch.status),
            batch.endpoint,
            batch.model or "",
            str(batch.request_counts.completed),
            str(batch.request_counts.failed),
            str(batch.request_counts.total),
            tables.age(batch.created_at),
        ]
        for batch in batches
    ]
    return tables.render(headers, rows, right=("COMPLETED", "FAILED", "TOTAL"))
