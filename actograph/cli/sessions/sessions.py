"""`actograph sessions`: list, show, pull, change, remove."""

import time
from contextlib import closing
from itertools import islice
from typing import Annotated, Any

import typer

from actograph.cli.flags import completion
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
from actograph.cli.flags.session_filters import (
    ChosenSessions,
    ConditionOption,
    CorrectOption,
    EveryOption,
    JobOption,
    ModelOption,
    OwnerOption,
    PinnedOption,
    SampleOption,
    TagOption,
    check_choice,
    is_filtered,
    query,
    resolve,
)
from actograph.cli.jobs.jobs import each
from actograph.cli.output import tables
from actograph.cli.output.output import Format, ask, emit, note
from actograph.cli.sessions.session_pull import pull
from actograph.contract.errors import InvalidRequest

app = typer.Typer(no_args_is_help=True, help="Find and fetch what was captured.")

SessionArgument = Annotated[
    str, typer.Argument(metavar="SESSION", help="Id, or its beginning.", autocompletion=completion.sessions)
]


@app.command("ls")
def list_sessions(
    ctx: typer.Context,
    *,
    job: JobOption = None,
    model: ModelOption = None,
    condition: ConditionOption = None,
    sample_index: SampleOption = None,
    correct: CorrectOption = None,
    tag: TagOption = None,
    owner: OwnerOption = None,
    pinned: PinnedOption = None,
    limit: LimitOption = 20,
    everything: AllOption = False,
    quiet: QuietOption = False,
    no_trunc: NoTruncOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """List sessions, the newest first."""
    flags = dict(locals())
    from actograph.cli.output import session_tables

    with closing(client_of(ctx)) as client:
        wanted = query(client, flags)
        found = client.sessions.list(page_size=100 if everything else min(100, limit + 1), **wanted)
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
    from actograph.cli.output import session_tables

    with closing(client_of(ctx)) as client:
        found = client.sessions.get(resolve(client, session))
        emit(found.model_dump_json() if output is Format.JSON else session_tables.describe(found))


app.command("pull")(pull)


@app.command("rm")
def remove(
    ctx: typer.Context,
    *,
    sessions: ChosenSessions = None,
    job: JobOption = None,
    model: ModelOption = None,
    condition: ConditionOption = None,
    sample_index: SampleOption = None,
    correct: CorrectOption = None,
    tag: TagOption = None,
    owner: OwnerOption = None,
    everything: EveryOption = False,
    include_pinned: Annotated[
        bool, typer.Option("--include-pinned", help="By filter: remove pinned sessions too.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="By filter: do not ask.")] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Delete sessions with their files, by id or all that fit the filters."""
    flags = dict(locals())
    with closing(client_of(ctx)) as client:
        wanted = query(client, flags)
        check_choice(sessions or [], filtered=is_filtered(wanted), everything=everything)
        if sessions:
            if dry_run:
                each(sessions, lambda typed: client.sessions.get(resolve(client, typed)), output)
            else:
                each(sessions, lambda typed: client.sessions.delete(resolve(client, typed)), output)
            return
        dry = client.sessions.delete_many(
            dry_run=True, everything=everything, include_pinned=include_pinned, **wanted
        )
        what = f"{dry.sessions} sessions, {tables.size(dry.bytes)}"
        what += f" ({dry.pinned} pinned ones stay)" if dry.pinned else ""
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
def update(
    ctx: typer.Context,
    *,
    sessions: ChosenSessions = None,
    pin: Annotated[
        bool | None, typer.Option("--pin/--unpin", help="Keep them from expiry and deletions of many.")
    ] = None,
    expires_in: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Delete them in 12h, 7d, ...; `never` keeps them.")
    ] = None,
    set_tag: Annotated[
        list[str] | None, typer.Option(help="All their tags from now on; give it again for more.")
    ] = None,
    no_tags: Annotated[bool, typer.Option("--no-tags", help="Take all their tags away.")] = False,
    job: JobOption = None,
    model: ModelOption = None,
    condition: ConditionOption = None,
    sample_index: SampleOption = None,
    correct: CorrectOption = None,
    tag: TagOption = None,
    owner: OwnerOption = None,
    pinned: PinnedOption = None,
    everything: EveryOption = False,
    dry_run: DryRunOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Pin sessions, change when they expire, or tag them: by id, or all that fit the filters."""
    flags = dict(locals())
    change = _change(pin, expires_in, set_tag, no_tags=no_tags)
    with closing(client_of(ctx)) as client:
        wanted = query(client, flags)
        check_choice(sessions or [], filtered=is_filtered(wanted), everything=everything)
        if sessions and dry_run:
            each(sessions, lambda typed: client.sessions.get(resolve(client, typed)), output)
        elif sessions:
            each(sessions, lambda typed: client.sessions.update(resolve(client, typed), **change), output)
        else:
            reached = client.sessions.update_many(change, everything=everything, dry_run=dry_run, **wanted)
            if output is Format.JSON:
                emit(reached.model_dump_json())
            note(f"{'to be changed' if dry_run else 'changed'}: {reached.sessions} sessions")


def _change(
    pin: bool | None, expires_in: str | None, set_tag: list[str] | None, *, no_tags: bool
) -> dict[str, Any]:
    """The fields to change. Raises InvalidRequest where there are none, or they contradict."""
    if set_tag and no_tags:
        raise InvalidRequest("--set-tag and --no-tags contradict")
    change: dict[str, Any] = {} if pin is None else {"pinned": pin}
    if expires_in is not None:
        seconds = None if expires_in == NEVER else seconds_of(expires_in, "--expires-in")
        change["expires_at"] = None if seconds is None else int(time.time()) + seconds
    if set_tag or no_tags:
        change["tags"] = set_tag or []
    if not change:
        raise InvalidRequest("say what to change: --pin, --unpin, --expires-in, --set-tag or --no-tags")
    return change
