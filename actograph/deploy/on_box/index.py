"""The index between releases: backed up before a migration, put back for a release from before it.

A release whose start migrated the index has a record of it, `migration`: the number of the release `before`,
and `file`, the backup, or None without one. The newer of two releases does the work: it knows both schemas.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional, Tuple  # noqa: UP035 (Python 3.8)

from . import service
from .layout import Box, BoxError, last_line, log, run

#: the release whose version knows both schemas, and the copy to put back; None: nothing is to be undone
Undo = Optional[Tuple[dict, str]]  # type: ignore[type-arg]  # noqa: UP006, UP045


def before_migration(box: Box, release: dict[str, Any], former: dict[str, Any] | None, backup: bool) -> Undo:
    """Back up the index if the start of a release will migrate it, and record this in the release.

    Raises:
        BoxError: the release does not know the index's schema, or the index cannot be copied.
    """
    found = _call(box, release, *(["save", str(box.home / "index-backups")] if backup else ["due"]))
    if not found:
        return None
    number, file = release["number"], found["file"]
    release["migration"] = {"before": former and former["number"], "file": file}
    log(f"release {number} migrates the index from schema {found['schema']}; backup: {file or 'none'}")
    return (release, file) if file else None


def copy_for(former: dict[str, Any] | None, release: dict[str, Any]) -> str | None:
    """Return the backup that a change back to a release needs; None if it needs none.

    Raises:
        BoxError: the index was migrated without a backup.
    """
    migration = former and former.get("migration")
    if not former or not migration or migration["before"] != release["number"]:
        return None
    if _database(former) != _database(release):
        return None
    if not migration["file"]:
        raise BoxError(
            f"release {former['number']} migrated the index without a backup, and release "
            f"{release['number']} does not know the new schema. Nothing was stopped"
        )
    return str(migration["file"])


def put_back(box: Box, newer: dict[str, Any], file: str, said: list[str]) -> Undo:
    """Replace the index by a copy, unless it is at the copy's schema. Returns how to undo this.

    Args:
        said: takes the result in words.

    Raises:
        BoxError: the copy is missing, or the database refuses it.
    """
    found = _call(box, newer, "put-back", file)
    if not found:
        return None
    said.append(f"the index was restored from {file}; the one that it replaced is kept in {found['kept']}")
    log(said[-1])
    return newer, found["kept"]


def _database(release: dict[str, Any]) -> dict[str, str]:
    """Return the variables of a release that name its database."""
    variables = release["environment"].items()
    return {name: value for name, value in variables if name.startswith("ACTOGRAPH_DATABASE_URL")}


def _call(box: Box, release: dict[str, Any], *words: str) -> dict[str, Any] | None:
    """Run `storage.index_backup` of a release in the environment of its service, and return its result."""
    source = box.versions / release["version"]
    if not (source / "storage" / "index_backup.py").exists():  # a version from before this module
        return None
    variables = dict(service.environment(box, release), PYTHONPATH=str(source), PYTHONSAFEPATH="1")
    variables["ACTOGRAPH_HOME"] = str(box.home)
    # where the service runs: paths in its settings may be relative
    try:
        done = run([release["python"], "-m", "storage.index_backup", *words], variables, Path.home())
    except OSError as error:
        raise BoxError(f"the index was not copied: {error}") from None
    if done.returncode != 0:
        cure = "; --no-backup migrates without a copy" if words[0] == "save" else ""
        raise BoxError(f"the index was not copied: {last_line(done.stderr)}{cure}")
    found: dict[str, Any] | None = json.loads(last_line(done.stdout))
    return found
