"""Steps of a batch: read the input file, submit the job, write the output files.

Each step is one guarded transaction, so several processes may start it, and it may start again after a
crash. The reconciler continues after a crash; a file that is written again has the same id.
"""

import json
import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import ActographError, NotFound, ServiceUnavailable
from actograph.contract.openai_answers import (
    OUTPUT_PURPOSE,
    BatchError,
    BatchRequest,
    BatchStatus,
    RequestCounts,
)
from api import submit
from api.dependencies import Services
from api.openai import batch_input, batch_output
from storage.files import files
from storage.index import deletions, ids
from storage.jobs import batches, jobs
from storage.tables.models import BatchRow, JobRow

log = logging.getLogger(__name__)

#: number of locks; batches with the same lock wait for each other
SLOTS = 16


class BatchKeeper:
    def __init__(self, services: Services) -> None:
        self._services = services

    def advance_all(self) -> None:
        """Advance every unfinished batch."""
        with self._services.database.read() as session:
            found = batches.unended(session)
        for batch_id in found:
            if not self._services.stopping.is_set():
                self.advance_later(batch_id)

    def advance_later(self, batch_id: str) -> None:
        """Advance one batch; after an error the reconciler tries again."""
        try:
            self.advance(batch_id)
        except (ActographError, sa.exc.SQLAlchemyError, OSError) as error:
            log.warning("batch %s waits for the reconciler: %s", batch_id, error)
        except Exception:
            # other batches must not wait for this one
            log.exception("batch %s cannot advance; it is tried again", batch_id)

    def advance(self, batch_id: str) -> None:
        """Advance one batch as far as possible, unless another process does.

        Raises:
            ServiceUnavailable: the store is unreachable, or this process stops.
        """
        database = self._services.database
        # the request and the reconciler must not read a long file twice
        with database.alone(f"batch-{int(batch_id[-4:], 16) % SLOTS}") as is_alone:
            row = None
            if is_alone:
                with database.read() as session, suppress(NotFound):
                    row = batches.get(session, batch_id)
            if row is not None and row.status == BatchStatus.VALIDATING:
                self._begin(row)
            elif row is not None and not BatchStatus(row.status).is_terminal():
                self._end(row)

    def _begin(self, row: BatchRow) -> None:
        request = BatchRequest.model_validate(row.request)
        # lines may name only files and vectors of the batch's owner
        services = self._services
        if row.owner is not None:
            services = replace(services, database=services.database.restricted_to(row.owner))
        try:
            with batch_input.submission_of(services, row.id, request, row.owner) as submission:
                submit.insert(services, submission, partial(_begin_batch, row.id))
        except _Taken:
            return
        except ServiceUnavailable:
            raise
        except batch_input.InvalidBatch as error:
            self._refuse(row, *error.errors)
        except ActographError as error:
            self._refuse(row, BatchError(code=error.code, message=error.message, param=error.param))

    def _refuse(self, row: BatchRow, *errors: BatchError) -> None:
        with self._services.database.write() as session:
            told, counts = [error.model_dump() for error in errors], RequestCounts().model_dump()
            batches.move(session, row, BatchStatus.FAILED, errors=told, counts=counts)

    def _end(self, row: BatchRow) -> None:
        """Write the files of a batch with an ended job, and finish the batch."""
        database, job = self._services.database, None
        with database.read() as session, suppress(NotFound):
            job = jobs.get(session, row.job_id or "")
        if job is None:
            gone = "its job was deleted before the files were written"
            self._refuse(row, BatchError(code="job_deleted", message=gone))
            return
        if job.finished_at is None:
            return
        if row.status == BatchStatus.IN_PROGRESS:
            with database.write() as session:
                moved = batches.move(session, row, BatchStatus.FINALIZING)
            if moved is None:
                return
            row = moved
        end, reason = batch_output.status_of(row, job)
        with TemporaryFile() as answers, TemporaryFile() as errors:
            counts = batch_output.write(database, job, end, answers, errors)
            stored = {
                "output": self._store(row, "output", answers),
                "error": self._store(row, "error", errors),
            }
        with database.write() as session:
            # its deletion takes the job first and then the batch
            jobs.keep(session, [job.id])
            told = [reason.model_dump()] if reason else None
            ids_of = {f"{name}_file_id": file and file["file_id"] for name, file in stored.items()}
            if batches.move(session, row, end, counts=counts, errors=told, **ids_of) is None:
                return  # another process was faster; its files are these
            for file in stored.values():
                if file is not None:
                    deletions.end_storing(session, file["file_id"])
                    files.insert(session, **file)
        log.info("batch %s is %s: %s", row.id, end, json.dumps(counts))

    def _store(self, row: BatchRow, name: str, file: BinaryIO) -> dict[str, Any] | None:
        """Store a file, and return its values in the index; None if it is empty."""
        if not file.tell():
            return None
        file.seek(0)
        file_id = ids.file_id_of(f"{row.id} {name}")
        with self._services.database.write() as session:  # should this process die, the bytes go
            deletions.begin_storing(session, file_id, row.owner, 0)
        chunks = iter(partial(file.read, 1 << 20), b"")
        size, sha256 = self._services.store.put_stream(f"files/{file_id}", chunks)
        expiry = BatchRequest.model_validate(row.request).output_expires_after
        return {
            "file_id": file_id,
            "filename": f"{row.id}_{name}.jsonl",
            "purpose": OUTPUT_PURPOSE,
            "size": size,
            "sha256": sha256,
            "owner": row.owner,
            "expires_after": None if expiry is None else expiry.seconds,
        }


class _Taken(Exception):
    """The batch was moved on by another process, or cancelled."""


def _begin_batch(batch_id: str, session: Session, job: JobRow) -> None:
    """Raises _Taken."""
    held = batches.lock(session, batch_id)
    if held is None or held.status != BatchStatus.VALIDATING:
        raise _Taken
    batches.move(session, held, BatchStatus.IN_PROGRESS, job_id=job.id, model=job.model)
