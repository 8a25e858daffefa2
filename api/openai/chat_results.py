"""OpenAI's answer of an ended chat job, or its error."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from sqlalchemy.orm import Session

from actograph import __version__
from actograph.contract import openai_answers as answers
from actograph.contract import resources
from actograph.contract.chat_job import is_only_read
from actograph.contract.errors import ActographError
from actograph.contract.readouts import ReadoutValues
from actograph.contract.resources import JobStatus, SampleStatus
from actograph.contract.tool_calls import ToolCall, parse_calls, text_before_calls
from api.dependencies import Services
from storage import samples
from storage.jobs import jobs
from storage.sessions import sessions
from storage.tables.models import JobRow, SampleRow

#: HTTP status by the error of a sample or job; others are 500
_STATUSES = {
    "invalid_request": 400,
    "context_length_exceeded": 400,
    "model_not_found": 404,
    "conflict": 409,
    "service_unavailable": 503,
    "sample_timeout": 504,
    "deadline_exceeded": 504,
}


class ChatFailed(ActographError):
    """A failed chat."""

    def __init__(self, *, type: str, message: str, param: str | None = None, **_: object) -> None:
        """The arguments are the error of the job or of its first failed sample."""
        # fields of a job's sampling are fields of the request
        super().__init__(message, param=param and param.removeprefix("sampling."))
        # a class has one code, but each failure its own
        self.code = type  # type: ignore[misc]
        self.status = _STATUSES.get(type, 500)  # type: ignore[misc]
        # OpenAI's clients must not send a failed request again
        self.headers = {} if self.status == 503 else {"x-should-retry": "false"}


def read(services: Services, job_id: str) -> answers.ChatCompletion | answers.Completion:
    """Read the answer of an ended job.

    Raises:
        ChatFailed: the job failed or was cancelled, or one of its samples failed.
    """
    with services.database.read() as session:
        job = jobs.get(session, job_id)
        rows, _ = samples.find(session, job_id, limit=job.total or 1)
        captured = sessions_of(session, rows)
    for row in rows:
        if row.status == SampleStatus.FAILED and row.error is not None:
            raise ChatFailed(**row.error)
    if job.status == JobStatus.CANCELLED:
        raise ChatFailed(type="conflict", message=f"job {job_id} of this request was cancelled")
    if job.status != JobStatus.COMPLETED:
        raise ChatFailed(**job.error or {"type": "internal_error", "message": "the job failed"})
    if job.spec.get("capture") is not None and any(row.session_id not in captured for row in rows):
        raise ChatFailed(type="capture_failed", message="the activations of this request were deleted")
    return answer(job, rows, captured)


def sessions_of(session: Session, rows: Iterable[SampleRow]) -> dict[str, resources.Session]:
    """Sessions of samples, by id."""
    wanted = [row.session_id for row in rows if row.session_id]
    found = sessions.by_ids(session, wanted) if wanted else []
    return {one.id: one for one in sessions.resources_of(session, found)}


def is_chat(row: SampleRow) -> bool:
    """True for a sample of `/v1/chat/completions`, False for `/v1/completions`."""
    return row.input.get("messages") is not None


def answer(
    job: JobRow, rows: Sequence[SampleRow], captured: Mapping[str, resources.Session]
) -> answers.ChatCompletion | answers.Completion:
    """Answer a request, in the form of its route. The choices of a prompt stand together."""
    # a prompt counts once for all of its choices
    prompts = sum(row.prompt_tokens or 0 for row in rows if row.epoch == 0)
    chosen = sum(row.generated_tokens or 0 for row in rows)
    points: Mapping[str, str] = (job.pinned or {}).get("savepoints") or {}
    form = answers.ChatCompletion if is_chat(rows[0]) else answers.Completion
    choice = _chat_choice if is_chat(rows[0]) else _completion_choice
    return form(
        **envelope(job, rows[0]),
        choices=[choice(row, place, _captured(captured, row, points)) for place, row in enumerate(rows)],
        usage=answers.CompletionUsage(
            prompt_tokens=prompts, completion_tokens=chosen, total_tokens=prompts + chosen
        ),
        **_captured(captured, rows[0], points),
    )


def envelope(job: JobRow, row: SampleRow) -> dict[str, Any]:
    """Fields of every answer and every chunk of a job."""
    prefix = "chatcmpl" if is_chat(row) else "cmpl"
    return {
        "id": f"{prefix}-{job.id.removeprefix('job_')}",
        "created": int(job.created_at),
        "model": job.model,
        "system_fingerprint": f"fp_{sha256(f'{job.model} {__version__}'.encode()).hexdigest()[:10]}",
        "run_id": job.id,
    }


def _chat_choice(row: SampleRow, place: int, captured: dict[str, Any]) -> answers.ChatChoice:
    content, calls = split_answer(row)
    return answers.ChatChoice(
        index=place,
        message=answers.AssistantMessage(
            content=content,
            tool_calls=calls or None,
            run_id=row.job_id if captured else None,
            **{name: captured[name] for name in ("session_id", "activation_files") if name in captured},
        ),
        finish_reason="tool_calls" if calls else _finish_reason(row),
        logprobs=None if row.logprobs is None else answers.ChatLogprobs(content=list(row.logprobs)),
        **captured,
    )


def _completion_choice(row: SampleRow, place: int, captured: dict[str, Any]) -> answers.CompletionChoice:
    prompt = row.prompt if row.input.get("echo") else None
    text = (prompt or "") + (row.completion or "")
    return answers.CompletionChoice(
        index=place,
        text=text,
        finish_reason=_finish_reason(row),
        logprobs=None if row.logprobs is None else _completion_logprobs(text, row.logprobs),
        **captured,
    )


def split_answer(row: SampleRow) -> tuple[str | None, list[answers.MessageToolCall]]:
    """Split a completion into text and tool calls. Empty text beside calls is None.

    If one call cannot be parsed, all calls stay in the text: a client must not run half of them. A required
    call stays in the text if it names no tool of the request.
    """
    text = row.completion or ""
    if not row.input.get("tools"):
        return text, []
    found = parse_calls(text)[: 1 if row.input.get("one_call") else None]
    calls = [call for call in found if isinstance(call, ToolCall)]
    if not calls or len(calls) < len(found):
        return text, []
    offered = {tool["function"]["name"] for tool in row.input["tools"]}
    if row.input.get("must_call") and any(call.name not in offered for call in calls):
        return text, []
    said = text_before_calls(text)
    return said or None, [
        answers.MessageToolCall(
            # the same for every read
            id=f"call_{sha256(f'{row.id} {place}'.encode()).hexdigest()[:24]}",
            function=answers.Function(name=call.name, arguments=json.dumps(dict(call.arguments))),
        )
        for place, call in enumerate(calls)
    ]


def _finish_reason(row: SampleRow) -> answers.FinishReason:
    return "length" if row.finish_reason == "length" or is_only_read(row.input) else "stop"


def _captured(
    captured: Mapping[str, resources.Session], row: SampleRow, savepoints: Mapping[str, str]
) -> dict[str, Any]:
    """The activations of a choice. Savepoints of the model have their own names beside the hooks'."""
    session = captured.get(row.session_id or "")
    if session is None:
        return {}
    return {
        "readouts": {
            name: ReadoutValues.model_validate(values) for name, values in (row.readouts or {}).items()
        }
        or None,
        "session_id": session.id,
        "activation_files": [
            answers.ActivationFile(
                name=file.name,
                bytes=file.bytes,
                sha256=file.sha256,
                url=f"/v1/activations/sessions/{session.id}/files/{file.name}",
            )
            for file in session.files
        ],
        "activations_meta": session.hooks
        | {name: session.hooks[hook] for name, hook in savepoints.items() if hook in session.hooks},
    }


def _completion_logprobs(text: str, stored: Sequence[Mapping[str, Any]]) -> answers.CompletionLogprobs:
    """Log probabilities in the form of OpenAI's older completions. The first token of a prompt has none."""
    return answers.CompletionLogprobs(
        tokens=[token["token"] for token in stored],
        token_logprobs=[token.get("logprob") for token in stored],
        top_logprobs=[token.get("top") for token in stored],
        text_offset=list(_offsets(text, stored)),
    )


def _offsets(text: str, tokens: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """Offset of each token in the text.

    A token without text (an end token, or one cut off by a stop string) has the offset of the next token. So
    have the tokens of one character, except the last.
    """
    at = 0
    partial = b""
    for token in tokens:
        yield at
        shown = token["token"]
        if shown.startswith("bytes:"):
            partial += bytes(token["bytes"] or b"")
            try:
                shown = partial.decode()
            except UnicodeDecodeError:
                continue
        partial = b""
        # decoders remove the white space before the first word
        for form in (shown, shown.removeprefix(" ")):
            if text.startswith(form, at):
                at += len(form)
                break
