"""Output files of a finished batch: one line per answer or error.

Lines have OpenAI's form: `{id, custom_id, response: {status_code, request_id, body}, error}`. The error of
a failed request is in `response.body.error`; `error` is set if the request did not finish.
"""

import json
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, BinaryIO

from sqlalchemy.orm import Session

from actograph.contract.openai_answers import BatchError, BatchStatus, BatchUsage, RequestCounts
from actograph.contract.resources import JobStatus, SampleStatus
from api.errors import openai_error
from api.openai import chat_results
from api.openai.chat_results import ChatFailed, ChatResult
from storage.index.database import Database
from storage.jobs import batches
from storage.tables.models import BatchRow, JobRow

#: lines per read of sessions
PAGE = 100


def status_of(row: BatchRow, job: JobRow) -> tuple[BatchStatus, BatchError | None]:
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
    total = completed = read = chosen = 0
    with database.read() as session:
        for result in _results(session, job):
            line = _line(result, end)
            is_answer = line["error"] is None and line["response"]["status_code"] == 200
            total, completed = total + 1, completed + is_answer
            if is_answer:
                read, chosen = read + result.usage.prompt_tokens, chosen + result.usage.completion_tokens
            file = answers if is_answer else errors
            file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
    counts = RequestCounts(total=total, completed=completed, failed=total - completed)
    usage = BatchUsage(input_tokens=read, output_tokens=chosen, total_tokens=read + chosen)
    return counts.model_dump() | usage.model_dump()


def _results(session: Session, job: JobRow) -> Iterator[ChatResult]:
    """Read each request in the order of the input file, and its sessions in pages."""
    lines = batches.lines(session, job.id)
    while page := list(islice(lines, PAGE)):
        stored = chat_results.sessions_of(session, chain.from_iterable(page))
        yield from (ChatResult(job=job, samples=rows, sessions=stored) for rows in page)


def _line(result: ChatResult, end: BatchStatus) -> dict[str, Any]:
    rows = result.samples
    own = rows[0].id.removeprefix("smp_")
    line: dict[str, Any] = {
        "id": f"batch_req_{own}",
        "custom_id": rows[0].input["custom_id"],
        "response": None,
        "error": None,
    }
    failed = next((row.error for row in rows if row.status == SampleStatus.FAILED and row.error), None)
    if failed is not None:
        refused = ChatFailed(failed)
        status = chat_results.status_of(refused)
        error = openai_error(status, refused.message, code=refused.code).model_dump()
        return line | {"response": {"status_code": status, "request_id": own, "body": {"error": error}}}
    if any(row.status != SampleStatus.COMPLETED for row in rows):
        return line | {"error": _unfinished(result.job, end)}
    answer = chat_results.answer(result)
    # the id of the job would be the same for all
    prefix = answer.id.partition("-")[0]
    body = answer.model_copy(update={"id": f"{prefix}-{own}"}).model_dump(mode="json")
    return line | {"response": {"status_code": 200, "request_id": own, "body": body}}


def _unfinished(job: JobRow, end: BatchStatus) -> dict[str, str]:
    if end is BatchStatus.EXPIRED:
        code, message = "batch_expired", "the request had not ended when the batch's completion_window passed"
    elif end is BatchStatus.CANCELLED:
        code, message = "batch_cancelled", "the request had not ended when the batch was cancelled"
    else:
        reason = (job.error or {}).get("message", "the job ended early")
        code, message = "batch_failed", f"the request was not run: {reason}"
    return {"code": code, "message": message}
