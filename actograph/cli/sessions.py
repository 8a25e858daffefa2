"""`actograph sessions`: list, show, download, change and delete sessions."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.cli.flags import (
    LIST_FLAGS,
    NEVER,
    SESSION_FILTERS,
    DryRunOption,
    FormatOption,
    IdArgument,
    add_flags,
    connect,
    examples,
    seconds_of,
    session_id,
    session_query,
)
from actograph.cli.output import (
    INTERRUPTED,
    OK,
    Ended,
    Format,
    age,
    ask,
    each,
    emit,
    emit_item,
    emit_list,
    end,
    error_code,
    fields,
    note,
    render,
    size,
    yes_no,
)
from actograph.contract.errors import ActographError, InvalidRequest
from actograph.progress import duration, meter

if TYPE_CHECKING:
    from actograph.client import Client
    from actograph.client.sessions import SessionHandle
    from actograph.contract.resources import Session

app = typer.Typer(no_args_is_help=True, help="List, download, change and delete sessions.")

SessionArguments = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids, or unique prefixes.")]
EveryOption = Annotated[bool, typer.Option("--all", help="All sessions.")]

COLUMNS = {
    "SESSION ID": lambda session: session.id,
    "JOB ID": lambda session: session.job_id,
    ">INDEX": lambda session: session.sample_index,
    "CONDITION": lambda session: session.condition,
    ">PROMPT": lambda session: session.prompt_tokens,
    ">GENERATED": lambda session: session.generated_tokens,
    ">ROWS": lambda session: session.rows,
    ">HOOKS": lambda session: len(session.hooks),
    "DTYPE": lambda session: session.dtype,
    ">SIZE": lambda session: size(session.bytes),
    "CORRECT": lambda session: yes_no(session.correct),
    "AGE": lambda session: age(session.created_at),
}


@app.command("ls", epilog=examples("actograph sessions ls --tag night --incorrect --all --format json"))
@add_flags(SESSION_FILTERS | LIST_FLAGS)
def list_sessions(ctx: typer.Context, *, output: FormatOption = Format.TABLE, **given: Any) -> None:
    """List sessions, newest first."""
    shown = {name: given.pop(name) for name in LIST_FLAGS}
    with connect(ctx) as client:
        emit_list(client.sessions.list(**session_query(client, given)), COLUMNS, output, **shown)


@app.command()
def show(ctx: typer.Context, session: IdArgument, output: FormatOption = Format.TABLE) -> None:
    """Show a session: its hooks, shapes and files."""
    with connect(ctx) as client:
        found = client.sessions.get(session_id(client, session))
        emit_item(found, output, _describe)


@app.command(epilog=examples("actograph sessions pull --job job_3fa2 --incorrect --out wrong --jobs 8"))
@add_flags(SESSION_FILTERS)
def pull(
    ctx: typer.Context,
    sessions: SessionArguments = None,
    *,
    out: Path = typer.Option(..., "--out", "-o", help="Folder; each session gets a folder in it."),
    everything: EveryOption = False,
    parallel: int = typer.Option(4, "--jobs", "-j", min=1, max=64, help="Sessions downloaded at once."),
    output: FormatOption = Format.TABLE,
    **filters: Any,
) -> None:
    """Download sessions by id or by filter, verified by sha256.

    Complete files are skipped.
    """
    with connect(ctx) as client:
        query = session_query(client, filters, sessions, everything=everything)
        ids = iter(sessions) if sessions else (session.id for session in client.sessions.list(**query))
        total = len(sessions) if sessions else client.sessions.stats(**query).sessions
        try:
            code = _pull_all(client, ids, out, total=total, parallel=parallel, output=output)
        except KeyboardInterrupt:
            note(f"interrupted; run the same command again to continue in {out}")
            raise Ended(INTERRUPTED) from None
    end(code)


def _pull_all(
    client: "Client", ids: Iterator[str], out: Path, *, total: int, parallel: int, output: Format
) -> int:
    """Download sessions side by side and report each. Returns the exit status."""
    from actograph.concurrency import each_of

    def fetch(name: str) -> "tuple[str, SessionHandle | ActographError]":
        try:
            session = client.sessions.get(session_id(client, name))
            session.download(out)
        except ActographError as error:
            return name, error
        return name, session

    code, done, errors, files, total_size = OK, 0, 0, 0, 0
    with meter("sessions") as update:
        update("in_progress", 0, total)
        for done, (name, found) in enumerate(each_of(fetch, ids, parallel), 1):
            if isinstance(found, ActographError):
                errors += 1
                note(f"{name}: {found}")
                code = max(code, error_code(found))
            else:
                files, total_size = files + len(found.files), total_size + found.bytes
                folder = str(out / found.id)
                line = {"id": found.id, "folder": folder, "files": len(found.files), "bytes": found.bytes}
                emit(json.dumps(line) if output is Format.JSON else folder)
            update("in_progress", done, total, errors)
    note(f"{done - errors} sessions, {files} files, {size(total_size)}, verified")
    return code


@app.command("rm", epilog=examples("actograph sessions rm --tag night --correct --dry-run"))
@add_flags({name: flag for name, flag in SESSION_FILTERS.items() if name != "pinned"})
def remove(
    ctx: typer.Context,
    sessions: SessionArguments = None,
    *,
    everything: EveryOption = False,
    include_pinned: bool = typer.Option(
        False, "--include-pinned", help="With filters: delete pinned sessions too."
    ),
    dry_run: DryRunOption = False,
    yes: bool = typer.Option(False, "--yes", "-y", help="Delete without asking."),
    output: FormatOption = Format.TABLE,
    **filters: Any,
) -> None:
    """Delete sessions with their files, by id or by filter."""
    with connect(ctx) as client:
        query = session_query(client, filters, sessions, everything=everything)
        if sessions:
            act: Any = client.sessions.get if dry_run else client.sessions.delete
            each(sessions, lambda typed: act(session_id(client, typed)), output)
            return
        choice: Any = {"everything": everything, "include_pinned": include_pinned, **query}
        found = client.sessions.delete_many(dry_run=True, **choice)
        what = f"{found.sessions} sessions, {size(found.bytes)}"
        what += f" ({found.pinned} pinned sessions stay)" if found.pinned else ""
        if dry_run or not found.sessions:
            what = f"to be deleted: {what}"
        else:
            if not yes:
                ask(f"Delete {what}?")
            found = client.sessions.delete_many(**choice)
            what = f"deleted {found.sessions} sessions, {size(found.bytes)}"
        if output is Format.JSON:
            emit(found.model_dump_json())
        note(what)


@app.command(epilog=examples("actograph sessions update --job job_3fa2 --set-tag keep --expires-in 30d"))
@add_flags(SESSION_FILTERS)
def update(
    ctx: typer.Context,
    sessions: SessionArguments = None,
    *,
    pin: bool | None = typer.Option(
        None, "--pin/--unpin", help="Protect from expiry and from deletion by filter."
    ),
    expires_in: str | None = typer.Option(None, help="Delete after 12h, 7d, ..., or `never`."),
    set_tag: list[str] = typer.Option([], help="Replace all tags. Repeat for more."),
    no_tags: bool = typer.Option(False, "--no-tags", help="Remove all tags."),
    everything: EveryOption = False,
    dry_run: DryRunOption = False,
    output: FormatOption = Format.TABLE,
    **filters: Any,
) -> None:
    """Pin sessions, set their expiry or their tags, by id or by filter."""
    change = _change(pin, expires_in, set_tag, no_tags=no_tags)
    with connect(ctx) as client:
        query = session_query(client, filters, sessions, everything=everything)
        if sessions:
            act: Any = client.sessions.get if dry_run else client.sessions.update
            options = {} if dry_run else change
            each(sessions, lambda typed: act(session_id(client, typed), **options), output)
            return
        found = client.sessions.update_many(change, everything=everything, dry_run=dry_run, **query)
        if output is Format.JSON:
            emit(found.model_dump_json())
        note(f"{'to be changed' if dry_run else 'changed'}: {found.sessions} sessions")


def _change(pin: bool | None, expires_in: str | None, set_tag: list[str], *, no_tags: bool) -> dict[str, Any]:
    """Return the fields to change. Raises InvalidRequest if there are none, or they conflict."""
    if set_tag and no_tags:
        raise InvalidRequest("--set-tag and --no-tags exclude each other")
    change: dict[str, Any] = {} if pin is None else {"pinned": pin}
    if expires_in is not None:
        span = None if expires_in == NEVER else seconds_of(expires_in, "--expires-in")
        change["expires_at"] = None if span is None else int(time.time()) + span
    if set_tag or no_tags:
        change["tags"] = set_tag
    if not change:
        raise InvalidRequest("nothing to change: use --pin, --unpin, --expires-in, --set-tag or --no-tags")
    return change


def _describe(session: "Session") -> str:
    """Describe a session: fields, hooks and files."""
    expires = ""
    if session.expires_at is not None:
        left = session.expires_at - time.time()
        expires = f"in {duration(left)}" if left > 0 else "due"
        expires += " (not while it is pinned)" if session.pinned else ""
    tokens = f"{session.prompt_tokens} prompt + {session.generated_tokens} generated"
    values = {
        "id": session.id,
        "job": session.job_id,
        "sample": f"{session.sample_id} (row {session.sample_index}, epoch {session.epoch})",
        "condition": session.condition,
        "model": session.model,
        "created": f"{age(session.created_at)} ago",
        "tokens": f"{tokens}, {session.rows} rows",
        "size": size(session.bytes),
        "correct": yes_no(session.correct),
        "tags": ", ".join(session.tags),
        "owner": session.owner,
        "pinned": "yes" if session.pinned else "",
        "expires": expires,
    }
    hooks = [
        [name, "x".join(map(str, info.shape)), info.dtype, info.first_row, size(info.nbytes)]
        for name, info in session.hooks.items()
    ]
    files = [[file.name, size(file.bytes), file.sha256] for file in session.files]
    tables = [
        render(("HOOK", "SHAPE", "DTYPE", ">FIRST ROW", ">SIZE"), hooks),
        render(("FILE", ">SIZE", "SHA256"), files),
    ]
    return "\n\n".join([fields(values, 10), *tables])
