"""`actograph backup` and `restore`: index and store together, on the server itself."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from actograph.cli import exit_codes
from actograph.cli.flags.options import FormatOption
from actograph.cli.output import tables
from actograph.cli.output.output import Format, emit, note

FolderArgument = Annotated[Path, typer.Argument(help="Folder of the backup.", file_okay=False)]
HomeOption = Annotated[
    Path | None, typer.Option(help="Home folder of the service. Default: ACTOGRAPH_HOME, or ~/.actograph.")
]


def backup(folder: FolderArgument, *, home: HomeOption = None, output: FormatOption = Format.TABLE) -> None:
    """Back up index and store to a folder, while the service runs.

    Run it on the server, with the service's environment. A second backup to the same folder copies only new
    files. Exit status 1: stored files were missing or damaged; the rest is saved.
    """
    _run("save", folder, home, output)


def restore(folder: FolderArgument, *, home: HomeOption = None, output: FormatOption = Format.TABLE) -> None:
    """Restore a backup to an empty service that does not run.

    An interrupted restore can be run again.
    """
    from actograph.settings import Settings
    from actograph.stack.home_lock import HomeLock

    with HomeLock((home or Settings().home).absolute()):
        _run("restore", folder, home, output)


def _run(command: str, folder: Path, home: Path | None, output: Format) -> None:
    from actograph.stack.stack import require_installed

    require_installed()
    environment = os.environ | {"PYTHONSAFEPATH": "1"}
    if home is not None:
        environment["ACTOGRAPH_HOME"] = str(home.absolute())
    done = subprocess.run(
        [sys.executable, "-m", "storage.backup", command, str(folder.absolute())],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if not done.stdout:
        raise exit_codes.Ended(exit_codes.ERROR)
    record: dict[str, Any] = json.loads(done.stdout)
    if output is Format.JSON:
        emit(json.dumps(record))
    else:
        verb = "saved" if command == "save" else "restored"
        size = tables.size(record["bytes"])
        emit(f"{verb}: {record['sessions']} sessions, {record['files']} files, {size}, {record['index']}")
    if record["damaged"]:
        note(f"{len(record['damaged'])} missing or damaged: {', '.join(record['damaged'][:5])}")
        raise exit_codes.Ended(exit_codes.ERROR)
