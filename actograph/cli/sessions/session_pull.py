"""`actograph sessions pull`: download sessions side by side, resumed and verified."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.cli import exit_codes
from actograph.cli.flags import identifiers
from actograph.cli.flags.add_flags import add_flags
from actograph.cli.flags.arguments import SessionArguments
from actograph.cli.flags.options import FormatOption, client_of
from actograph.cli.flags.session_filters import FILTERS, EveryOption, check_choice, query
from actograph.cli.output import tables
from actograph.cli.output.output import Format, emit, note
from actograph.contract.errors import ActographError

if TYPE_CHECKING:
    from actograph.client import Client


@dataclass(frozen=True)
class _Pulled:
    """Outcome for one session; `error` is None if all its files are complete and verified."""

    name: str
    folder: Path | None = None
    files: int = 0
    size: int = 0
    error: ActographError | None = None


@add_flags(FILTERS)
def pull(
    ctx: typer.Context,
    sessions: SessionArguments = None,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder; each session gets a folder in it.")],
    everything: EveryOption = False,
    parallel: Annotated[
        int, typer.Option("--jobs", "-j", min=1, max=64, help="Sessions downloaded at once.")
    ] = 4,
    output: FormatOption = Format.TABLE,
    **filters: Any,
) -> None:
    """Download sessions by id or by filter, verified by sha256.

    Complete files are skipped, and interrupted ones resumed.
    """
    with closing(client_of(ctx)) as client:
        wanted = query(client, filters)
        check_choice(sessions, wanted, everything=everything)
        names = iter(sessions) if sessions else (session.id for session in client.sessions.list(**wanted))
        total = len(sessions) if sessions else client.sessions.stats(**wanted).sessions
        try:
            code = _pull_all(client, names, out, total=total, parallel=parallel, output=output)
        except KeyboardInterrupt:
            note(f"interrupted; run the same command again to continue in {out}")
            raise exit_codes.Ended(exit_codes.INTERRUPTED) from None
    if code:
        raise exit_codes.Ended(code)


def _pull_all(
    client: "Client", names: Iterator[str], out: Path, *, total: int, parallel: int, output: Format
) -> int:
    """Download sessions side by side and report each. Returns the exit code."""
    from actograph.client.concurrency import each_of
    from actograph.progress import duration, meter

    began, code = time.monotonic(), exit_codes.OK
    done = errors = files = size = 0
    with meter("sessions") as update:
        update("in_progress", 0, total)
        for pulled in each_of(lambda name: _fetch(client, name, out), names, parallel):
            done += 1
            if pulled.error is not None:
                errors += 1
                note(f"{pulled.name}: {pulled.error}")
                code = max(code, exit_codes.of_error(pulled.error))
            else:
                files, size = files + pulled.files, size + pulled.size
                _print(pulled, output)
            update("in_progress", done, total, errors)
    took = duration(time.monotonic() - began)
    note(f"{done - errors} sessions, {files} files, {tables.size(size)}, verified, in {took}")
    return code


def _fetch(client: "Client", name: str, out: Path) -> _Pulled:
    try:
        session = client.sessions.get(identifiers.session(client, name))
        folder = session.download(out)
    except ActographError as error:
        return _Pulled(name, error=error)
    return _Pulled(session.id, folder, len(session.files), session.bytes)


def _print(pulled: _Pulled, output: Format) -> None:
    if output is Format.TABLE:
        emit(str(pulled.folder))
        return
    line = {
        "id": pulled.name,
        "folder": str(pulled.folder),
        "files": pulled.files,
        "bytes": pulled.size,
    }
    emit(json.dumps(line))
