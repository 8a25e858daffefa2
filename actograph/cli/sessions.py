"""`actograph sessions`: list, show, download, change and delete sessions."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.cli.flags import LIST_FLAGS, DryRunOption, IdArgument, YesOption
from actograph.cli.shell import ERROR, OK, Shell, ask, command, emit, end, error_code, note, on_interrupt
from actograph.contract.errors import ActographError, InvalidRequest
from actograph.progress import meter
from actograph.short_texts import NEVER, seconds_of, size
from actograph.tables import Columns

if TYPE_CHECKING:
    from actograph.client.sessions import SessionFilters, SessionHandle

app = typer.Typer(no_args_is_help=True, help="List, download, change and delete sessions.")

SessionArguments = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids, or unique prefixes.")]
EveryOption = Annotated[bool, typer.Option("--all", help="All sessions.")]
FILTERS: dict[str, Any] = {
    "job": Annotated[str | None, typer.Option(help="Sessions of this job.")],
    "model": Annotated[str | None, typer.Option(help="Sessions of this model.")],
    "condition": Annotated[str | None, typer.Option(help="Sessions of this condition.")],
    "sample_index": Annotated[int | None, typer.Option(help="Sessions of this dataset row.")],
    "correct": Annotated[
        bool | None, typer.Option("--correct/--incorrect", help="Verdict of the first scorer.")
    ],
    "tag": Annotated[str | None, typer.Option(help="Sessions with this tag.")],
    "owner": Annotated[str | None, typer.Option(help="Sessions of this owner.")],
    "source_session": Annotated[str | None, typer.Option("--replays-of", help="Replays of this session.")],
    "pinned": Annotated[
        bool | None, typer.Option("--pinned/--not-pinned", help="Pinned sessions, or those without a pin.")
    ],
    "analyses": Annotated[
        bool | None, typer.Option("--analyses/--no-analyses", help="Sessions of analyses, or all others.")
    ],
}
COLUMNS: Columns = (
    "session id=id", "job_id", "sample_index", "condition", "prompt=prompt_tokens",
    "generated=generated_tokens", "rows", ("hooks", lambda session: len(session.hooks)), "dtype",
    "size=bytes", "correct", "age=created_at",
)  # fmt: skip


@command(
    app, "ls", FILTERS | LIST_FLAGS, ["actograph sessions ls --tag night --incorrect --all --format json"]
)
def list_sessions(shell: Shell, **given: Any) -> None:
    """List sessions, newest first; those of analyses only with --analyses or their --job."""
    shown = {name: given.pop(name) for name in LIST_FLAGS}
    if given["job"] is None and given["analyses"] is None:
        given["analyses"] = False
    shell.rows(shell.client.sessions.list(**_query(shell, given)), COLUMNS, **shown)


@command(app)
def show(shell: Shell, session: IdArgument) -> None:
    """Show a session: its hooks, shapes and files."""
    shell.show(shell.client.sessions.get(shell.id("ses", session)))


@command(
    app,
    "download",
    FILTERS,
    [
        "actograph sessions download --job job_3fa2 --incorrect --out wrong --jobs 8",
        "actograph sessions download ses_3760 --files '*.png' --out .",
    ],
)
def download(
    shell: Shell,
    sessions: SessionArguments = None,
    *,
    out: Path = typer.Option(..., "--out", "-o", help="Folder; each session gets a folder in it."),
    files: str = typer.Option("*", metavar="PATTERN", help="Only files of these names, such as '*.png'."),
    everything: EveryOption = False,
    parallel: int = typer.Option(4, "--jobs", "-j", min=1, max=64, help="Sessions downloaded at once."),
    **filters: Any,
) -> None:
    """Download sessions by id or by filter, verified by sha256.

    Skips complete files.
    """
    from actograph.concurrency import each_of

    client, query = shell.client, _selection(shell, filters, sessions, everything=everything)
    ids = iter(sessions) if sessions else (session.id for session in client.sessions.list(**query))
    total = len(sessions) if sessions else client.sessions.stats(**query).sessions

    def fetch(name: str) -> "tuple[str, SessionHandle | ActographError]":
        try:
            session = client.sessions.get(shell.id("ses", name))
            session.download(out, files)
        except ActographError as error:
            return name, error
        return name, session

    code, done, failed, count, total_size = OK, 0, 0, 0, 0
    interrupted = f"interrupted; run the same command again to continue in {out}"
    with on_interrupt(interrupted), meter("sessions") as update:
        update("in_progress", 0, total)
        for done, (name, found) in enumerate(each_of(fetch, ids, parallel), 1):
            if isinstance(found, ActographError):
                note(f"{name}: {found}")
                failed, code = failed + 1, max(code, error_code(found))
            else:
                chosen = found.named(files)
                fetched = sum(file.bytes for file in chosen)
                count, total_size = count + len(chosen), total_size + fetched
                folder = str(out / found.id)
                line = {"id": found.id, "folder": folder, "files": len(chosen), "bytes": fetched}
                emit(json.dumps(line) if shell.json else folder)
            update("in_progress", done, total, failed)
    note(f"{done - failed} sessions, {count} files, {size(total_size)}, verified")
    end(code)


@command(
    app,
    "rm",
    {name: flag for name, flag in FILTERS.items() if name != "pinned"},
    ["actograph sessions rm --tag night --correct --dry-run"],
)
def remove(
    shell: Shell,
    sessions: SessionArguments = None,
    *,
    everything: EveryOption = False,
    include_pinned: bool = typer.Option(
        False, "--include-pinned", help="With filters: delete pinned sessions too."
    ),
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    **filters: Any,
) -> None:
    """Delete sessions with their files, by id or by filter."""
    choice: Any = _selection(shell, filters, sessions, everything=everything)
    if sessions:
        _remove(shell, sessions, dry_run=dry_run, yes=yes)
        return
    choice |= {"everything": everything, "include_pinned": include_pinned}
    found = shell.client.sessions.delete_many(dry_run=True, **choice)
    what = f"{found.sessions} sessions, {size(found.bytes)}"
    what += f" ({found.pinned} pinned sessions stay)" if found.pinned else ""
    if dry_run or not found.sessions:
        what = f"to be deleted: {what}"
    else:
        if not yes:
            ask(f"Delete {what}?")
        found = shell.client.sessions.delete_many(**choice)
        what = f"deleted {found.sessions} sessions, {size(found.bytes)}"
    if shell.json:
        emit(found.model_dump_json())
    note(what)


def _remove(shell: Shell, typed: list[str], *, dry_run: bool, yes: bool) -> None:
    """Delete sessions by id, after a question as for those of a filter. All ids must be known."""
    ours = shell.client.sessions
    found = [ours.get(one) for one in dict.fromkeys(shell.id("ses", name) for name in typed)]
    count = "1 session" if len(found) == 1 else f"{len(found)} sessions"
    what = f"{count}, {size(sum(one.bytes for one in found))}"
    if dry_run:
        shell.each("ses", [one.id for one in found], ours.get)
        note(f"to be deleted: {what}")
        return
    if not yes:
        ask(f"Delete {what}?")
    gone = [one for one in found if _deleted(shell, one.id)]
    note(f"deleted {len(gone)} of {count}, {size(sum(one.bytes for one in gone))}")
    end(OK if len(gone) == len(found) else ERROR)


def _deleted(shell: Shell, session_id: str) -> bool:
    """Delete one session and print its id. Returns False, with a note, if the service refuses."""
    try:
        shell.show(shell.client.sessions.delete(session_id), lambda done: str(done.id))
    except ActographError as error:
        note(f"{session_id}: {error}")
        return False
    return True


@command(app, "score", examples=["actograph sessions score labels.csv --job job_3fa2"])
def score(
    shell: Shell,
    file: Path = typer.Argument(..., metavar="FILE.csv", exists=True, dir_okay=False),
    *,
    job: str | None = typer.Option(None, help="Job whose samples the file names by their sample_index."),
) -> None:
    """Store scores of sessions, from a CSV file with a column for each score.

    A column `session_id` names the sessions; with --job it is `sample_index`, and perhaps `condition` and
    `epoch`. A column `correct` (true or false) sets the verdicts. Empty cells leave a score as it is.
    Matrices and probes take the scores as labels.
    """
    from actograph.cli.score_files import read_scores

    ours = shell.client.sessions
    sessions = None if job is None else ours.list(job_id=shell.id("job", job))
    count = ours.score(read_scores(file, sessions))
    if shell.json:
        emit(json.dumps({"sessions": count}))
    note(f"scored: {count} sessions")


@command(
    app, "update", FILTERS, ["actograph sessions update --job job_3fa2 --set-tag keep --expires-after 30d"]
)
def update(
    shell: Shell,
    sessions: SessionArguments = None,
    *,
    pin: bool | None = typer.Option(
        None, "--pin/--unpin", help="Protect from expiry and from deletion by filter."
    ),
    expires_after: str | None = typer.Option(None, help="Delete after 12h, 7d, ..., or `never`."),
    set_tag: list[str] = typer.Option([], help="Replace all tags. Repeat for more."),
    no_tags: bool = typer.Option(False, "--no-tags", help="Remove all tags."),
    everything: EveryOption = False,
    dry_run: DryRunOption = False,
    **filters: Any,
) -> None:
    """Pin sessions, set their expiry or their tags, by id or by filter."""
    if set_tag and no_tags:
        raise InvalidRequest("--set-tag and --no-tags exclude each other")
    change: dict[str, Any] = {} if pin is None else {"pinned": pin}
    if expires_after is not None:
        span = None if expires_after == NEVER else seconds_of(expires_after, "--expires-after")
        change["expires_at"] = None if span is None else int(time.time()) + span
    if set_tag or no_tags:
        change["tags"] = set_tag
    if not change:
        raise InvalidRequest("nothing to change: use --pin, --unpin, --expires-after, --set-tag or --no-tags")
    query, ours = _selection(shell, filters, sessions, everything=everything), shell.client.sessions
    if sessions:
        shell.each("ses", sessions, lambda one: ours.get(one) if dry_run else ours.update(one, **change))
        return
    found = ours.update_many(change, everything=everything, dry_run=dry_run, **query)
    if shell.json:
        emit(found.model_dump_json())
    note(f"{'to be changed' if dry_run else 'changed'}: {found.sessions} sessions")


def _query(shell: Shell, filters: Mapping[str, Any]) -> "SessionFilters":
    """Return the query of `FILTERS`."""
    query: Any = {name: value for name, value in filters.items() if value is not None}
    if "job" in query:
        query["job_id"] = shell.id("job", query.pop("job"))
    found: SessionFilters = query
    return found


def _selection(
    shell: Shell, filters: Mapping[str, Any], ids: list[str] | None, *, everything: bool
) -> "SessionFilters":
    """Return the query of the filters. Raises InvalidRequest unless ids, filters or --all alone are given."""
    filtered = any(value is not None for value in filters.values())
    if bool(ids) + filtered + everything != 1:
        raise InvalidRequest("choose sessions by id, by filters such as --job and --tag, or with --all")
    return _query(shell, filters)
