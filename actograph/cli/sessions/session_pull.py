"""`actograph sessions pull`: files of sessions fetched side by side, taken up again and checked."""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from actograph.cli import exit_codes
from actograph.cli.flags.options import FormatOption, client_of
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
from actograph.cli.output import tables
from actograph.cli.output.output import Format, emit, note
from actograph.contract.errors import ActographError
from actograph.progress import duration

if TYPE_CHECKING:
    from actograph.client import Client


@dataclass(frozen=True)
class _Pulled:
    """What became of one session: `error` is None where all its files are there and checked."""

    name: str
    folder: Path | None = None
    files: int = 0
    size: int = 0
    error: ActographError | None = None


def pull(
    ctx: typer.Context,
    *,
    sessions: ChosenSessions = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder; each session gets one of its own in it.")],
    job: JobOption = None,
    model: ModelOption = None,
    condition: ConditionOption = None,
    sample_index: SampleOption = None,
    correct: CorrectOption = None,
    tag: TagOption = None,
    owner: OwnerOption = None,
    pinned: PinnedOption = None,
    everything: EveryOption = False,
    parallel: Annotated[
        int, typer.Option("--jobs", "-j", min=1, max=64, help="Sessions that are fetched at once.")
    ] = 4,
    output: FormatOption = Format.TABLE,
) -> None:
    """Download all files of sessions, by id or all that fit the filters, checked by sha256.

    What is there already is not fetched again, and a file that broke off goes on where it ended.
    """
    flags = dict(locals())
    from actograph.client.blocking.runtime import each_of
    from actograph.progress import RateMeter, view

    began, failed = time.monotonic(), exit_codes.OK
    done = errors = files = size = 0
    with closing(client_of(ctx)) as client:
        wanted = query(client, flags)
        check_choice(sessions or [], filtered=is_filtered(wanted), everything=everything)
        total = len(sessions) if sessions else client.sessions.stats(**wanted).sessions

        def names() -> Iterator[str]:
            if sessions:
                yield from sessions
            else:
                for session in client.sessions.list(**wanted):
                    yield session.id

        meter = RateMeter()
        meter.add(began, 0)
        try:
            with view("sessions") as shown:
                for pulled in each_of(lambda name: _fetch(client, name, out), names(), parallel):
                    done += 1
                    meter.add(time.monotonic(), done)
                    if pulled.error is not None:
                        errors += 1
                        note(f"{pulled.name}: {pulled.error}")
                        failed = max(failed, exit_codes.of_error(pulled.error))
                    else:
                        files, size = files + pulled.files, size + pulled.size
                        _tell(pulled, output)
                    shown.update("in_progress", done, errors, total, meter.per_second)
        except KeyboardInterrupt:
            note(f"broken off; the same command goes on in {out}")
            raise exit_codes.Ended(exit_codes.INTERRUPTED) from None
    took = duration(time.monotonic() - began)
    note(f"{done - errors} sessions, {files} files, {tables.size(size)}, checked, in {took}")
    if failed:
        raise exit_codes.Ended(failed)


def _fetch(client: "Client", name: str, out: Path) -> _Pulled:
    try:
        session = client.sessions.get(resolve(client, name))
        folder = session.download(out)
    except ActographError as error:
        return _Pulled(name, error=error)
    return _Pulled(session.id, folder, len(session.files), session.bytes)


def _tell(pulled: _Pulled, output: Format) -> None:
    if output is Format.TABLE:
        emit(str(pulled.folder))
        return
    import json

    line = {
        "id": pulled.name,
        "folder": str(pulled.folder),
        "files": pulled.files,
        "bytes": pulled.size,
    }
    emit(json.dumps(line))
