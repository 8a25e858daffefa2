"""`actograph sessions`: list, show, pull, remove."""

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from actograph.cli import identifiers, tables
from actograph.cli.jobs import each
from actograph.cli.options import (
    AllOption,
    FormatOption,
    LimitOption,
    NoTruncOption,
    QuietOption,
    client_of,
)
from actograph.cli.output import Format, emit, note

if TYPE_CHECKING:
    from actograph.client import Client

app = typer.Typer(no_args_is_help=True, help="Find and fetch what was captured.")

SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help="Id, or its beginning.")]
SessionArguments = Annotated[
    list[str], typer.Argument(metavar="SESSION...", help="Ids, or their beginnings.")
]


@app.command("ls")
def list_sessions(
    ctx: typer.Context,
    *,
    job: Annotated[str | None, typer.Option(help="Sessions of this job (id or its beginning).")] = None,
    model: Annotated[str | None, typer.Option(help="Sessions of this model.")] = None,
    condition: Annotated[str | None, typer.Option(help="Sessions of this condition.")] = None,
    sample_index: Annotated[int | None, typer.Option(help="Sessions of this row of the dataset.")] = None,
    correct: Annotated[
        bool | None, typer.Option("--correct/--incorrect", help="By the verdict of the first scorer.")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Sessions of jobs with this tag.")] = None,
    limit: LimitOption = 20,
    everything: AllOption = False,
    quiet: QuietOption = False,
    no_trunc: NoTruncOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """List sessions, the newest first."""
    from actograph.cli import session_tables

    with closing(client_of(ctx)) as client:
        found = client.sessions(
            job_id=identifiers.resolve(job, "job", (j.id for j in client.jobs()))
            if job is not None
            else None,
            model=model,
            condition=condition,
            sample_index=sample_index,
            correct=correct,
            tag=tag,
            page_size=100 if everything else min(100, limit + 1),
        )
        sessions = list(found if everything else islice(found, limit))
        if quiet:
            for session in sessions:
                emit(tables.shorten(session.id, full=no_trunc))
        elif output is Format.JSON:
            for session in sessions:
                emit(session.model_dump_json())
        else:
            emit(session_tables.render_sessions(sessions, full=no_trunc))
            if not everything and next(found, None) is not None:
                note(f"the newest {limit}; more with --all or --limit")


@app.command()
def show(ctx: typer.Context, session: SessionArgument, output: FormatOption = Format.TABLE) -> None:
    """Show one session: its hooks, shapes and files."""
    from actograph.cli import session_tables

    with closing(client_of(ctx)) as client:
        found = client.session(_resolve(client, session))
        emit(found.model_dump_json() if output is Format.JSON else session_tables.describe(found))


@app.command()
def pull(
    ctx: typer.Context,
    sessions: SessionArguments,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder; each session gets one of its own in it.")],
) -> None:
    """Download all files of sessions, checked by sha256; what broke off is taken up again."""

    def fetch(typed: str) -> str:
        from actograph.client import downloads

        session = client.session(_resolve(client, typed))
        folder = out / downloads.plain_name(session.id)
        folder.mkdir(parents=True, exist_ok=True)
        for file in session.files:
            client.download(session.id, file, folder / downloads.plain_name(file.name))
        note(
            f"{tables.shorten(session.id)}: {len(session.files)} files, {tables.size(session.bytes)}, checked"
        )
        return str(folder)

    with closing(client_of(ctx)) as client:
        each(sessions, fetch)


@app.command("rm")
def remove(ctx: typer.Context, sessions: SessionArguments) -> None:
    """Delete sessions with their files."""
    with closing(client_of(ctx)) as client:
        each(sessions, lambda typed: client.delete_session(_resolve(client, typed)).id)


def _resolve(client: "Client", typed: str) -> str:
    def known() -> Iterator[str]:
        for session in client.sessions():
            yield session.id

    return identifiers.resolve(typed, "ses", known())
