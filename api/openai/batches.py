"""Steps of a batch: read the input file, submit the job, write the output files.

Each step is one guarded transaction, so several processes may start it, and it may start again after a
crash. The background thread continues after a crash.
"""

import json
import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from tempfile import TemporaryFile
from typing import BinaryIO

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from actograph.contract.errors import ActographError, Conflict, NotFound, ServiceUnavailable
from actograph.contract.openai_answers import (
    OUTPUT_PURPOSE,
    BatchError,
    BatchRequest,
    BatchStatus,
    RequestCounts,
)
from api import submit
from api.dependencies import Services
from api.errors import INTERNAL
from api.kinds import batch_lines
from api.openai import batch_output
from storage.files import files
from storage.jobs import batches, jobs
from storage.tables.models import BatchRow

log = logging.getLogger(__name__)

#: number of locks; batches with the same lock wait for each other
SLOTS = 16
#: a later attempt may succeed
PASSING = (ServiceUnavailable, OperationalError, InterfaceError, PoolTimeout, OSError)


def advance_all(services: Services) -> None:
    """Advance every unfinished batch."""
    with services.database.read() as session:
        unended = batches.unended(session)
    for batch_id in unended:
        if not services.stopping.is_set():
            advance(services, batch_id)


def advance(services: Services, batch_id: str) -> None:
    """Advance a batch as far as possible, unless another process does.

    A batch waits while a service is unavailable or the disk is full. After any other error it fails.
    """
    database, row = services.database, None
    try:
        # the request and the background thread must not read a long file twice
        with database.alone(f"batch-{int(batch_id[-4:], 16) % SLOTS}") as is_alone:
            if not is_alone:
                return
            with database.read() as session:
                row = batches.get(session, batch_id)
            if row.status == BatchStatus.VALIDATING:
                _begin(services, row)
            elif not BatchStatus(row.status).is_terminal():
                _end(services, row)
        return
    except PASSING as error:
        log.warning("batch %s waits for a later attempt: %s", batch_id, error)
        return
    except ActographError as error:
        reason = BatchError(code=error.code, message=error.message, param=error.param)
    except Exception:
        log.exception("batch %s cannot advance", batch_id)
        reason = BatchError(code="internal_error", message=INTERNAL)
    if row is not None:
        with suppress(*PASSING):
            _fail(services, row, reason)


def _begin(services: Services, row: BatchRow) -> None:
    request = BatchRequest.model_validate(row.request)
    # lines may name only files and vectors of the batch's owner
    own = replace(services, database=services.database.restricted_to(row.owner))
    try:
        with batch_lines.submission_of(own, row.id, request, row.owner) as submission:
            submit.insert(own, submission, batch_id=row.id)
    except Conflict as error:
        log.info("%s", error)
    except batch_lines.InvalidBatch as error:
        _fail(services, row, *error.errors)


def _fail(services: Services, row: BatchRow, *errors: BatchError) -> None:
    with services.database.write() as session:
        reasons, counts = [error.model_dump() for error in errors], RequestCounts().model_dump()
        now = batches.get(session, row.id)
        if not BatchStatus(now.status).is_terminal():
            batches.move(session, now, BatchStatus.FAILED, errors=reasons, counts=counts)


def _end(services: Services, row: BatchRow) -> None:
    """Write the files of a batch with an ended job, and finish the batch."""
    database, job = services.database, None
    with database.read() as session, suppress(NotFound):
        job = jobs.get(session, row.job_id or "")
    if job is None:
        gone = "its job was deleted before the files were written"
        _fail(services, row, BatchError(code="job_deleted", message=gone))
        return
    if job.finished_at is None:
        return
    if row.status == BatchStatus.IN_PROGRESS:
        with database.write() as session:
            moved = batches.move(session, row, BatchStatus.FINALIZING)
        if moved is None:
            return
        row = moved
    end, reason = batch_output.status_of(job)
    stored: dict[str, tuple[str, int, str]] = {}
    with TemporaryFile() as answers, TemporaryFile() as errors:
        counts = batch_output.write(database, job, end, answers, errors)
        for name, file in (("output", answers), ("error", errors)):
            if file.tell():
                stored[f"{name}_file_id"] = _store(services, row, name, file)
    with database.write() as session:
        # its deletion takes the job first and then the batch
        jobs.lock_all(session, [job.id])
        reasons = [reason.model_dump()] if reason else None
        ids = {name: file_id for name, (file_id, _, _) in stored.items()}
        if batches.move(session, row, end, counts=counts, errors=reasons, **ids) is None:
            return  # another process was faster; the reaper removes these files
        for file_id, size, sha256 in stored.values():
            files.publish(session, file_id, size=size, sha256=sha256)
    log.info("batch %s is %s: %s", row.id, end, json.dumps(counts))


def _store(services: Services, row: BatchRow, name: str, file: BinaryIO) -> tuple[str, int, str]:
    """Store a file without publishing it. Returns its id, size and sha256."""
    file.seek(0)
    expiry = BatchRequest.model_validate(row.request).output_expires_after
    with services.database.write() as session:
        file_id = files.announce(
            session,
            filename=f"{row.id}_{name}.jsonl",
            purpose=OUTPUT_PURPOSE,
            owner=row.owner,
            expires_after=None if expiry is None else expiry.seconds,
        )
    chunks = iter(partial(file.read, 1 << 20), b"")
    return (file_id, *services.store.put_stream(f"files/{file_id}", chunks))
