"""Output files of a finished batch: one line per answer or error.

Lines have OpenAI's form: `{id, custom_id, response: {status_code, request_id, body}, error}`. The error of
a failed request is in `response.body.error`; `error` is set if the request did not finish.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import Any, BinaryIO

from actograph.contract import resources
from actograph.contract.openai_answers import BatchError, BatchStatus, BatchUsage, RequestCounts
from actograph.contract.resources import JobStatus, SampleStatus
from api.errors import openai_error
from api.openai import chat_results
from storage.index.database import Database
from storage.jobs import batches
from storage.tables.models import JobRow, SampleRow

#: lines per read of sessions
PAGE = 100


def status_of(job: JobRow) -> tuple[BatchStatus, BatchError | None]:
    """Final status of a batch with an ended job, and the error if the job was refused."""
    if job.status == JobStatus.CANCELLED:
        return BatchStatus.CANCELLED, None
    if job.status == JobStatus.FAILED and job.error is not None:
        if job.error["type"] == "deadline_exceeded":
            return BatchStatus.EXPIRED, None
        # if all samples failed, the job has finished and its lines have the reasons
        if (job.total or 0) != job.failed:
            return BatchStatus.FAILED, BatchError(code=job.error["type"], message=job.error["message"])
    return BatchStatus.COMPLETED, None


def write(
    database: Database, job: JobRow, end: BatchStatus, answers: BinaryIO, errors: BinaryIO
) -> dict[str, Any]:
    """Write the lines of all requests, in the order of the input file.

    Returns their counts and tokens, the fields of `RequestCounts` and `BatchUsage`.
    """
    counts: Counter[str] = Counter()
    with database.read() as session:
        lines = batches.lines(session, job.id)
        while page := list(islice(lines, PAGE)):
            stored = chat_results.sessions_of(session, chain.from_iterable(page))
            for rows in page:
                line = _line(job, rows, stored, end)
                is_answer = line["error"] is None and line["response"]["status_code"] == 200
                counts["completed" if is_answer else "failed"] += 1
                if is_answer:
                    counts.update(line["response"]["body"]["usage"])
                file = answers if is_answer else errors
                file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
    completed, failed = counts["completed"], counts["failed"]
    usage = BatchUsage(
        input_tokens=counts["prompt_tokens"],
        output_tokens=counts["completion_tokens"],
        total_tokens=counts["total_tokens"],
    )
    requests = RequestCounts(total=completed + failed, completed=completed, failed=failed)
    return requests.model_dump() | usage.model_dump()


def _line(
    job: JobRow, rows: Sequence[SampleRow], stored: Mapping[str, resources.Session], end: BatchStatus
) -> dict[str, Any]:
    own = rows[0].id.removeprefix("smp_")
    line: dict[str, Any] = {
        "id": f"batch_req_{own}",
        "custom_id": rows[0].input["custom_id"],
        "response": None,
        "error": None,
    }
    failed = next((row.error for row in rows if row.status == SampleStatus.FAILED and row.error), None)
    if failed is not None:
        refused = chat_results.ChatFailed(**failed)
        status = refused.status
        body: dict[str, Any] = {"error": openai_error(refused).model_dump()}
    elif any(row.status != SampleStatus.COMPLETED for row in rows):
        return line | {"error": _unfinished(job, end)}
    else:
        status, body = 200, chat_results.answer(job, rows, stored).model_dump(mode="json")
        # the id of the job would be the same for all
        body["id"] = f"{body['id'].partition('-')[0]}-{own}"
    return line | {"response": {"status_code": status, "request_id": own, "body": body}}


def _unfinished(job: JobRow, end: BatchStatus) -> dict[str, str]:
    if end is BatchStatus.EXPIRED:
        code, message = "batch_expired", "the request had not ended when the batch's completion_window passed"
    elif end is BatchStatus.CANCELLED:
        code, message = "batch_cancelled", "the request had not ended when the batch was cancelled"
    else:
        reason = (job.error or {}).get("message", "the job ended early")
        code, message = "batch_failed", f"the request was not run: {reason}"
    return {"code": code, "message": message}
