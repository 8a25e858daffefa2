"""Hooks of jobs and sessions by any name that the model had when it was recorded."""

from sqlalchemy.orm import Session

from actograph.contract import hooks
from actograph.contract.errors import NotFound, UnknownHook
from api.dependencies import Services
from storage.jobs import jobs
from storage.sessions.reader import SessionReader
from storage.tables.models import JobRow


def of_session(services: Services, reader: SessionReader, name: str) -> str:
    """The stored tensor of a hook's name; `name` itself if it is unknown."""
    manifest = reader.manifest
    found = hooks.find_stored(name, manifest.tensors)
    if found is None and (chosen := manifest.resolved_hooks.get(name)) in manifest.tensors:
        found = chosen
    if found is not None:
        return found
    # sessions of older versions do not have the names of their hooks
    with services.database.read() as session:
        try:
            return of_job(services, session, jobs.get(session, manifest.job_id), name)
        except NotFound:
            return hooks.canonical(name) or name


def of_job(services: Services, session: Session, row: JobRow, name: str) -> str:
    """The canonical name of a hook in a job's model; `name` itself if it is unknown."""
    savepoints = (row.pinned or {}).get("savepoints") or {}
    structure = services.structures.find(session, row.model)
    if structure is None:
        return savepoints.get(name) or hooks.canonical(name) or name
    try:
        return hooks.resolve(name, structure.model_copy(update={"savepoints": savepoints}))
    except UnknownHook:
        return hooks.canonical(name) or name
