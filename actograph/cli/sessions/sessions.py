"""`actograph sessions`: list, show, download, change and delete sessions."""

import time
from contextlib import closing
from functools import partial
from typing import Annotated, Any

import typer

from actograph.cli.flags import identifiers
from actograph.cli.flags.add_flags import add_flags
from actograph.cli.flags.arguments import SessionArgument, SessionArguments
from actograph.cli.flags.durations import NEVER, seconds_of
from actograph.cli.flags.options import (
    AllOption,
    DryRunOption,
    FormatOption,
    LimitOption,
    NoTruncOption,
    QuietOption,
    client_of,
)
from actograph.cli.flags.session_filters import FILTERS, EveryOption, check_choice, query
from actograph.cli.output import tables
from actograph.cli.output.each import each
from actograph.cli.output.output import Format, ask, emit, emit_list, note
from actograph.cli.sessions.session_pull import pull
from actograph.contract.errors import InvalidRequest

app = typer.Typer(no_args_is_help=True, help="List, download, change and delete sessions.")


@app.command("ls")
@add_flags(FILTERS)
def list_sessions(
    ctx: typer.Context,
    *,
    limit: LimitOption = 20,
    everything: AllOption = False,
    quiet: QuietOption = False,
    no_trunc: NoTruncOption = False,
    output: FormatOption = Format.TABLE,
    **filters: Any,
) -> None:
    """List sessions, newest first."""
    from actograph.cli.output import session_tables

    with closing(client_of(ctx)) as client:
        wanted = query(client, filters)
        found = client.sessions.list(page_size=100 if everything else min(100, limit + 1), **wanted)
        table = partial(session_tables.render_sessions, full=no_trunc)
        emit_list(found, table, output, quiet=quiet, full=no_trunc, limit=None if everything else limit)


@app.command()
def show(ctx: typer.Context, session: SessionArgument, output: FormatOption = Format.TABLE) -> None:
    """Show a session: its hooks, shapes and files."""
    from actograph.cli.output import session_tables

    with closing(client_of(ctx)) as client:
        found = client.sessions.get(identifiers.session(client, session))
        emit(found.model_dump_json() if output is Format.JSON else session_tables.describe(found))


app.command("pull")(pull)


@app.command("rm")
@add_flags({name: flag for name, flag in FILTERS.items() if name != "pinned"})
def remove(
    ctx: typer.Context,
    sessions: SessionArguments = None,
    *,
    everything: EveryOption = False,
    include_pinned: Annotated[
        bool, typer.Option("--include-pinned", help="With filters: delete pinned sessions too.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    output: FormatOption = Format.TABLE,
    **filters: Any,
) -> None:
    """Delete sessions with their files, by id or by filter."""
    with closing(client_of(ctx)) as client:
        wanted = query(client, filters)
        check_choice(sessions, wanted, everything=everything)
        if sessions:
            if dry_run:
                each(sessions, lambda typed: client.sessions.get(identifiers.session(client, typed)), output)
            else:
                each(
                    sessions, lambda typed: client.sessions.delete(identifiers.session(client, typed)), output
                )
            return
        dry = client.sessions.delete_many(
            dry_run=True, everything=everything, include_pinned=include_pinned, **wanted
        )
        what = f"{dry.sessions} sessions, {tables.size(dry.bytes)}"
        what += f" ({dry.pinned} pinned sessions stay)" if dry.pinned else ""
        if dry_run or not dry.sessions:
            if output is Format.JSON:
                emit(dry.model_dump_json())
            note(f"to be deleted: {what}")
            return
        if not yes:
            ask(f"Delete {what}?")
        gone = client.sessions.delete_many(everything=everything, include_pinned=include_pinned, **wanted)
        if output is Format.JSON:
            emit(gone.model_dump_json())
        note(f"deleted {gone.sessions} sessions, {tables.size(gone.bytes)}")


@app.command()
@add_flags(FILTERS)
def update(
    ctx: typer.Context,
    sessions: SessionArguments = None,
    *,
    pin: Annotated[
        bool | None, typer.Option("--pin/--unpin", help="Protect from expiry and from deletion by filter.")
    ] = None,
    expires_in: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Delete after 12h, 7d, ..., or `never`.")
    ] = None,
    set_tag: Annotated[list[str] | None, typer.Option(help="Replace all tags. Repeat for more.")] = None,
    no_tags: Annotated[bool, typer.Option("--no-tags", help="Remove all tags.")] = False,
    everything: EveryOption = False,
    dry_run: DryRunOption = False,
    output: FormatOption = Format.TABLE,
    **filters: Any,
) -> None:
    """Pin sessions, set their expiry or their tags, by id or by filter."""
    change = _change(pin, expires_in, set_tag, no_tags=no_tags)
    with closing(client_of(ctx)) as client:
        wanted = query(client, filters)
        check_choice(sessions, wanted, everything=everything)
        if sessions and dry_run:
            each(sessions, lambda typed: client.sessions.get(identifiers.session(client, typed)), output)
        elif sessions:
            each(
                sessions,
                lambda typed: client.sessions.update(identifiers.session(client, typed), **change),
                output,
            )
        else:
            reached = client.sessions.update_many(change, everything=everything, dry_run=dry_run, **wanted)
            if output is Format.JSON:
                emit(reached.model_dump_json())
            note(f"{'to be changed' if dry_run else 'changed'}: {reached.sessions} sessions")


def _change(
    pin: bool | None, expires_in: str | None, set_tag: list[str] | None, *, no_tags: bool
) -> dict[str, Any]:
    """Return the fields to change. Raises InvalidRequest if there are none, or they conflict."""
    if set_tag and no_tags:
        raise InvalidRequest("--set-tag and --no-tags exclude each other")
    change: dict[str, Any] = {} if pin is None else {"pinned": pin}
    if expires_in is not None:
        seconds = None if expires_in == NEVER else seconds_of(expires_in, "--expires-in")
        change["expires_at"] = None if seconds is None else int(time.time()) + seconds
    if set_tag or no_tags:
        change["tags"] = set_tag or []
    if not change:
        raise InvalidRequest("nothing to change: use --pin, --unpin, --expires-in, --set-tag or --no-tags")
    return change
