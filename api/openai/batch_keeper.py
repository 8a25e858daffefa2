"""Steps of a batch: read the input file, submit the job, write the output files.

Each step is one guarded transaction, so several processes may start it, and it may start again after a
crash. The reconciler continues after a crash; a file that is written again has the same id.
"""

import json
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import BinaryIO

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.batches import OUTPUT_PURPOSE, BatchError, BatchRequest, BatchStatus, RequestCounts
from actograph.contract.errors import ActographError, NotFound, ServiceUnavailable
from api import submit
from api.dependencies import Services
from api.openai import batch_input, batch_output
from api.openai.batch_input import InvalidBatch
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

    def advance_all(self) -> int:
        """Advance every unfinished batch; returns their number.

        Raises:
            ServiceUnavailable, sqlalchemy.exc.SQLAlchemyError: the store or the database is unreachable.
        """
        with self._services.database.read() as session:
            found = batches.unended(session)
        for batch_id in found:
            if self._services.stopping.is_set():
                break
            try:
                self.advance(batch_id)
            except (ActographError, sa.exc.SQLAlchemyError, OSError):
                raise
            except Exception:
                # other batches must not wait for this one
                log.exception("batch %s cannot advance; it is tried again", batch_id)
        return len(found)

    def advance(self, batch_id: str) -> None:
        """Advance one batch as far as possible, unless another process does.

        Raises:
            ServiceUnavailable: the store is unreachable, or this process stops.
        """
        # the request and the reconciler must not read a long file twice
        with self._services.database.alone(f"batch-{int(batch_id[-4:], 16) % SLOTS}") as is_alone:
            if is_alone:
                self._advance(batch_id)

    def advance_later(self, batch_id: str) -> None:
        """Advance one batch after its answer was sent; on errors the reconciler continues."""
        try:
            self.advance(batch_id)
        except (ActographError, sa.exc.SQLAlchemyError, OSError) as error:
            log.warning("batch %s waits for the reconciler: %s", batch_id, error)

    def _advance(self, batch_id: str) -> None:
        with self._services.database.read() as session:
            try:
                row = batches.get(session, batch_id)
            except NotFound:
                return
        if row.status == BatchStatus.VALIDATING:
            self._begin(row)
        elif not BatchStatus(row.status).is_terminal():
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
        except InvalidBatch as error:
            self._refuse(row, error.errors)
            return
        except ActographError as error:
            self._refuse(row, [BatchError(code=error.code, message=error.message, param=error.param)])
            return

    def _refuse(self, row: BatchRow, errors: list[BatchError]) -> None:
        with self._services.database.write() as session:
            values = {
                "errors": [error.model_dump() for error in errors],
                "counts": RequestCounts().model_dump(),
            }
            batches.move(session, row, BatchStatus.FAILED, **values)

    def _end(self, row: BatchRow) -> None:
        """Write the files of a batch with an ended job, and finish the batch."""
        services = self._services
        with services.database.read() as session:
            job = None
            if row.job_id is not None:
                with suppress(NotFound):
                    job = jobs.get(session, row.job_id)
        if job is None:
            gone = BatchError(code="job_deleted", message="its job was deleted before the files were written")
            self._refuse(row, [gone])
            return
        if job.finished_at is None:
            return
        if row.status == BatchStatus.IN_PROGRESS:
            with services.database.write() as session:
                moved = batches.move(session, row, BatchStatus.FINALIZING)
            if moved is None:
                return
            row = moved
        end, reason = batch_output.status_of(row, job)
        written = batch_output.write(services, job, end)
        with written.answers, written.errors:
            output = self._store(row, "output", written.answers)
            errors = self._store(row, "error", written.errors)
        expiry = BatchRequest.model_validate(row.request).output_expires_after
        with services.database.write() as session:
            # its deletion takes the job first and then the batch
            jobs.keep(session, [job.id])
            ended = batches.move(
                session,
                row,
                end,
                counts=written.counts.model_dump() | written.usage.as_stored(),
                errors=[reason.model_dump()] if reason else None,
                output_file_id=output.file_id if output else None,
                error_file_id=errors.file_id if errors else None,
            )
            if ended is None:
                return  # another process was faster; its files are these
            for stored in (output, errors):
                if stored is not None:
                    deletions.end_storing(session, stored.file_id)
                    files.insert(
                        session,
                        file_id=stored.file_id,
                        filename=stored.filename,
                        purpose=OUTPUT_PURPOSE,
                        size=stored.size,
                        sha256=stored.sha256,
                        owner=row.owner,
                        expires_after=None if expiry is None else expiry.seconds,
                    )
        log.info("batch %s is %s: %s", row.id, end, json.dumps(written.counts.model_dump()))

    def _store(self, row: BatchRow, name: str, file: BinaryIO) -> "_Stored | None":
        """Store a file; None if it is empty."""
        chunks = iter(partial(file.read, 1 << 20), b"")
        first = next(chunks, None)
        if first is None:
            return None
        file_id = ids.file_id_of(f"{row.id} {name}")
        with self._services.database.write() as session:  # should this process die, the bytes go
            deletions.begin_storing(session, file_id, row.owner, 0)
        size, sha256 = self._services.store.put_stream(f"files/{file_id}", chain([first], chunks))
        return _Stored(file_id, f"{row.id}_{name}.jsonl", size, sha256)


class _Taken(Exception):
    """The batch was moved on by another process, or cancelled."""


def _begin_batch(batch_id: str, session: Session, job: JobRow) -> JobRow:
    """Raises _Taken."""
    held = batches.lock(session, batch_id)
    if held is None or held.status != BatchStatus.VALIDATING:
        raise _Taken
    batches.move(session, held, BatchStatus.IN_PROGRESS, job_id=job.id, model=job.model)
    return job


@dataclass(frozen=True)
class _Stored:
    file_id: str
    filename: str
    size: int
    sha256: str
