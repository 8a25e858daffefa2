"""`actograph doctor`, `backup` and `restore`: for the machine of a service."""

import json
import subprocess
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from actograph.cli.shell import ERROR, Shell, emit, end, load_settings, note

FolderArgument = Annotated[Path, typer.Argument(help="Folder of the backup.", file_okay=False)]
HomeOption = Annotated[Path | None, typer.Option(help="Data folder of the service. (default: ~/.actograph)")]


def doctor(shell: Shell, **given: Any) -> None:
    """Check the requirements of `actograph up` on this machine, and name a cure for each failure.

    Takes options of `up`, and changes nothing. Exit status 1: there is a problem.
    """
    from actograph.stack.doctor import examine

    code = 0
    for finding in examine(load_settings(**given)):
        text = f"{'ok' if finding.is_ok else 'FAILED':<6} {finding.check:<9} {finding.detail}"
        emit(json.dumps(asdict(finding)) if shell.json else text)
        code = code if finding.is_ok else ERROR
    end(code)


def backup(shell: Shell, folder: FolderArgument, *, home: HomeOption = None) -> None:
    """Copy index and store to a folder, while the service runs.

    Run it on the machine and with the environment of the service. A second backup to the same folder copies
    only new sessions and uploads. Exit status 1: stored files were missing or damaged; the rest is saved.
    """
    _run(shell, "save", folder, home)


def restore(shell: Shell, folder: FolderArgument, *, home: HomeOption = None) -> None:
    """Copy a backup to a new home folder, or to an empty database and a store. No service may use them."""
    _run(shell, "restore", folder, home)


def _run(shell: Shell, verb: str, folder: Path, home: Path | None) -> None:
    from actograph.stack.home import locked
    from actograph.stack.programs import program, program_environment, require_installed

    require_installed()
    place = load_settings(home=home).home.expanduser().absolute()
    command = program("storage.backup", verb, str(folder.absolute()))
    with locked(place) if verb == "restore" else nullcontext():
        done = subprocess.run(
            command, env=program_environment(ACTOGRAPH_HOME=str(place)),
            stdout=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    if done.returncode != 0:
        end(ERROR)
    record = json.loads(done.stdout)
    text = f"{'saved' if verb == 'save' else 'restored'}: the index, {record['stored']} sessions and uploads"
    emit(json.dumps(record) if shell.json else text)
    if record["damaged"]:
        note(f"missing or damaged in the store, {len(record['damaged'])}: {' '.join(record['damaged'][:5])}")
        end(ERROR)
