"""Moves batches on: reads input files, submits their jobs, and writes the files of those that have ended.

Each step is one guarded transaction, so that it may be begun by several processes and again after a crash.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

from actograph.contract.batches import OUTPUT_PURPOSE, BatchError, BatchRequest, BatchStatus, RequestCounts
from actograph.contract.errors import ActographError, NotFound, ServiceUnavailable
from api import batch_input, batch_output, submissions
from api.batch_input import InvalidBatch
from api.dependencies import Services
from storage import batches, files, ids, jobs, webhooks
from storage.models import BatchRow

log = logging.getLogger(__name__)


class BatchKeeper:
    def __init__(self, services: Services) -> None:
        self._services = services

    def advance_all(self) -> int:
        """Every batch that somebody has to move on; returns how many there were."""
        with self._services.database.read() as session:
            found = batches.unended(session)
        for batch_id in found:
            if self._services.stopping.is_set():
                break
            self.advance(batch_id)
        return len(found)

    def advance(self, batch_id: str) -> None:
        """One batch, as far as it goes now. Raises ServiceUnavailable."""
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
        services, request = self._services, BatchRequest.model_validate(row.request)
        try:
            submission = batch_input.submission_of(services, row.id, request, row.owner)
            with services.database.write() as session:
                row = batches.get(session, row.id)
                if row.status != BatchStatus.VALIDATING:
                    return  # another process was faster, or it was cancelled
                job = submissions.insert(session, submission)
                batches.move(session, row, BatchStatus.IN_PROGRESS, job_id=job.id, model=job.model)
        except ServiceUnavailable:
            raise
        except InvalidBatch as error:
            self._refuse(row, error.errors)
            return
        except ActographError as error:
            self._refuse(row, [BatchError(code=error.code, message=error.message, param=error.param)])
            return
        services.broker.wake(job.id, job.priority)

    def _refuse(self, row: BatchRow, errors: list[BatchError]) -> None:
        with self._services.database.write() as session:
            values = {
                "errors": [error.model_dump() for error in errors],
                "counts": RequestCounts().model_dump(),
            }
            failed = batches.move(session, row, BatchStatus.FAILED, **values)
            if failed is not None:
                webhooks.plan_batch(session, failed, batches.resource(session, failed))

    def _end(self, row: BatchRow) -> None:
        """Write the files of a batch whose job has ended, and end it."""
        services = self._services
        with services.database.read() as session:
            job = None
            if row.job_id is not None:
                with suppress(NotFound):
                    job = jobs.get(session, row.job_id)
        if job is None:
            gone = BatchError(code="job_deleted", message="its job was deleted before it ended")
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
        kept: list[str] = []
        has_ended = False
        try:
            with written.answers, written.errors:
                output = self._store(written.answers)
                errors = self._store(written.errors)
            kept = [file_id for file_id, _, _ in (*output, *errors)]
            with services.database.write() as session:
                ended = batches.move(
                    session,
                    row,
                    end,
                    counts=written.counts.model_dump(),
                    errors=[reason.model_dump()] if reason else None,
                    output_file_id=output[0][0] if output else None,
                    error_file_id=errors[0][0] if errors else None,
                )
                if ended is not None:
                    for name, stored in (("output", output), ("error", errors)):
                        for file_id, size, sha256 in stored:
                            files.insert(
                                session,
                                file_id=file_id,
                                filename=f"{row.id}_{name}.jsonl",
                                purpose=OUTPUT_PURPOSE,
                                size=size,
                                sha256=sha256,
                                owner=row.owner,
                            )
                    webhooks.plan_batch(session, ended, batches.resource(session, ended))
            has_ended = ended is not None
        finally:
            if not has_ended:
                for file_id in kept:
                    services.store.delete_prefix(f"files/{file_id}")
        if has_ended:
            log.info("batch %s is %s: %s", row.id, end, json.dumps(written.counts.model_dump()))

    def _store(self, file: BinaryIO) -> list[tuple[str, int, str]]:
        """(file id, bytes, sha256) of what was stored; nothing of an empty file."""
        chunks: Iterator[bytes] = batch_output.chunks(file)
        first = next(chunks, None)
        if first is None:
            return []

        def all_chunks() -> Iterator[bytes]:
            yield first
            yield from chunks

        file_id = ids.new_file_id()
        size, sha256 = self._services.store.put_stream(f"files/{file_id}", all_chunks())
        return [(file_id, size, sha256)]
