"""Answers of `/v1/responses`, made of a chat's answer."""

from typing import Any, Literal

from pydantic import Field

from actograph.contract.base import Resource
from actograph.contract.openai_answers import BatchUsage, Captured, ChatCompletion
from api.openai.response_requests import ResponseRequest

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(Resource):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = Field([], description="Always empty.")
    logprobs: list[dict[str, Any]] = Field([])


class OutputMessage(Resource):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: Status
    content: list[OutputText]


class OutputCall(Resource):
    id: str
    type: Literal["function_call"] = "function_call"
    status: Status
    call_id: str
    name: str
    arguments: str = Field(description="JSON text.")


class ResponseUsage(BatchUsage):
    """Tokens of an answer. Cached and reasoning tokens are not counted and always 0."""

    input_tokens_details: dict[str, int] = Field({"cached_tokens": 0, "cache_write_tokens": 0})


class Response(Captured):
    """An answer with the fields of its request. It cannot be fetched later."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status
    error: None = None
    incomplete_details: dict[str, str] | None = Field(None, description="reason: max_output_tokens.")
    model: str
    output: list[OutputMessage | OutputCall]
    usage: ResponseUsage | None = Field(None, description="null before the end of a stream.")
    store: Literal[False] = False
    previous_response_id: None = None
    run_id: str = Field(description="Id of the job.")

    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"] = "disabled"


def begun(request: ResponseRequest, *, run_id: str, created: int, model: str) -> Response:
    """The answer before its first text."""
    form = request.text.format if request.text else None
    choice = request.tool_choice or "auto"
    return Response(
        id=_id("resp", run_id),
        created_at=created,
        status="in_progress",
        model=model,
        output=[],
        run_id=run_id,
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        metadata=request.metadata or {},
        parallel_tool_calls=request.parallel_tool_calls is not False,
        temperature=1.0 if request.temperature is None else request.temperature,
        text={"format": {"type": "text"} if form is None else form.model_dump(exclude_unset=True)},
        tool_choice=choice if isinstance(choice, str) else choice.model_dump(),
        tools=[tool.model_dump() for tool in request.tools or ()],
        top_p=1.0 if request.top_p is None else request.top_p,
    )


def ended(request: ResponseRequest, chat: ChatCompletion) -> Response:
    """The whole answer: at most one message, then the calls."""
    (choice,) = chat.choices
    is_cut = choice.finish_reason == "length"
    status: Status = "incomplete" if is_cut else "completed"
    calls = [
        OutputCall(
            id=call.id.replace("call", "fc", 1),
            status="completed",
            call_id=call.id,
            name=call.function.name,
            arguments=call.function.arguments,
        )
        for call in choice.message.tool_calls or ()
    ]
    output: list[OutputMessage | OutputCall] = [*calls]
    if choice.message.content or not calls:
        logprobs = choice.logprobs.content if choice.logprobs else []
        part = OutputText(text=choice.message.content or "", logprobs=logprobs)
        output.insert(0, message(chat.run_id, status, [part]))
    usage = ResponseUsage(
        input_tokens=chat.usage.prompt_tokens,
        output_tokens=chat.usage.completion_tokens,
        total_tokens=chat.usage.total_tokens,
    )
    return begun(request, run_id=chat.run_id, created=chat.created, model=chat.model).model_copy(
        update={
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": output,
            "usage": usage,
            **{name: getattr(chat, name) for name in Captured.model_fields},
        }
    )


def message(run_id: str, status: Status, content: list[OutputText]) -> OutputMessage:
    """The message of an answer."""
    return OutputMessage(id=_id("msg", run_id), status=status, content=content)


def _id(prefix: str, run_id: str) -> str:
    return f"{prefix}_{run_id.removeprefix('job_')}"
