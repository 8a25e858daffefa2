"""/v1/chat/completions and /v1/completions, in OpenAI's form. Requests run through the job queue."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Request
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response, StreamingResponse

from actograph.contract.chat.chat import ChatCompletionRequest, CompletionRequest
from actograph.contract.chat.chat_answers import ChatCompletion, Completion
from actograph.contract.chat.chat_job import ChatJobSpec
from actograph.contract.errors import ActographError
from api.auth import Caller
from api.dependencies import Services, ServicesDep
from api.openai import chat_requests, chat_results, chat_stream
from api.openai.chat_results import ChatResult
from api.openai.chat_stream import ChatChunks, CompletionChunks
from api.openai.chat_waiting import JobEnds, LiveTexts, Running, cancel, first_of
from api.problems.errors import CLIENT_CLOSED_REQUEST, actograph_problem
from api.problems.validation import parse_body
from api.reading import sse
from api.requests.request_body import JsonBody
from api.routing import SUBMIT, Body, Routes

router = Routes(prefix="/v1", tags=["chat"])

CHAT_BODY = Body(
    ChatCompletionRequest,
    {
        "a question, with activations": {
            "model": "Qwen/Qwen3-0.6B",
            "messages": [{"role": "user", "content": "What is 3 + 4?"}],
            "max_tokens": 64,
            "temperature": 0.7,
            "seed": 1,
            "capture": {"points": ["resid_post"], "layers": [12]},
        }
    },
    max_bytes=8 << 20,
)
TEXT_BODY = Body(
    CompletionRequest,
    {
        "a text to continue": {
            "model": "Qwen/Qwen3-0.6B",
            "prompt": "The capital of France is",
            "max_tokens": 8,
            "temperature": 0,
        }
    },
    max_bytes=24 << 20,
)
CHAT_EVENTS = (
    'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"7"}}]}\n\n'
    "data: [DONE]\n\n"
)
TEXT_EVENTS = 'data: {"object":"text_completion","choices":[{"index":0,"text":" 7"}]}\n\ndata: [DONE]\n\n'
ERRORS = [400, 404, 409, 503, 504]


@dataclass(frozen=True)
class Call:
    """A request with the services that answer it."""

    http: Request
    services: Services
    ends: JobEnds
    texts: LiveTexts
    #: threads for writes, which may wait for the index without blocking other requests
    threads: CapacityLimiter
    owner: str


def _streamed(example: str) -> dict[int | str, dict[str, object]]:
    description = "The answer; with `stream` Server-Sent Events, the last of which is `[DONE]`."
    return {200: {"description": description, "content": sse.documented(example)}}


R = TypeVar("R", ChatCompletionRequest, CompletionRequest)


@dataclass(frozen=True)
class Route(Generic[R]):
    """Differences between the two routes."""

    takes: type[R]
    spec: Callable[[R, Services], ChatJobSpec]
    answer: Callable[[ChatResult], BaseModel]
    chunks: chat_stream.Chunks


CHAT = Route(ChatCompletionRequest, chat_requests.chat_spec, chat_results.chat_completion, ChatChunks())
TEXT = Route(CompletionRequest, chat_requests.completion_spec, chat_results.completion, CompletionChunks())


async def _call(http: Request, services: ServicesDep, by: Caller) -> Call:
    state = http.app.state
    return Call(http, services, state.job_ends, state.live_texts, state.chat_threads, by)


CallDep = Annotated[Call, Depends(_call)]


@router.add(
    "POST",
    "/chat/completions",
    SUBMIT,
    "Answer a conversation",
    errors=ERRORS,
    body=CHAT_BODY,
    lane="own",
    response_model=ChatCompletion,
    responses=_streamed(CHAT_EVENTS),
)
async def create_chat_completion(call: CallDep, body: JsonBody) -> Response:
    """OpenAI's chat completion, with activations if `capture` or `store_activations` asks for them."""
    return await _answer(call, CHAT, body)


@router.add(
    "POST",
    "/completions",
    SUBMIT,
    "Continue texts",
    errors=ERRORS,
    body=TEXT_BODY,
    lane="own",
    response_model=Completion,
    responses=_streamed(TEXT_EVENTS),
)
async def create_completion(call: CallDep, body: JsonBody) -> Response:
    """OpenAI's text completion: a prompt, several, or token ids."""
    return await _answer(call, TEXT, body)


async def _answer(call: Call, route: Route[R], body: bytes) -> Response:
    """Submit and answer, whole or streamed. A client that disconnects cancels its job."""
    try:
        request, running = await to_thread.run_sync(_submit, call, route, body, limiter=call.threads)
        if not request.stream:
            return await _at_the_end(call, route, running)
        include_usage = request.stream_options is not None and request.stream_options.include_usage
        events = chat_stream.stream(running, route.chunks, include_usage=include_usage)
        first = asyncio.ensure_future(anext(events))
        # before the first text an error is an answer of its own
        if not await first_of(first, call.http):
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        stream = chat_stream.guarded(first.result(), events)
        return StreamingResponse(stream, headers=sse.HEADERS, media_type="text/event-stream")
    except ActographError as error:
        return refusal(error, call.http.url.path)


def _submit(call: Call, route: Route[R], body: bytes) -> tuple[R, Running]:
    request = parse_body(route.takes, body)
    spec = route.spec(request, call.services)
    job, samples = chat_requests.submit(call.services, spec, call.owner)
    return request, Running(
        services=call.services, ends=call.ends, texts=call.texts, job=job, samples=samples
    )


async def _at_the_end(call: Call, route: Route[R], running: Running) -> Response:
    services, job_id = running.services, running.job.id
    has_ended = False
    try:
        ended = asyncio.ensure_future(running.ends.wait(job_id))
        has_ended = await first_of(ended, call.http)
        if not has_ended:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        ended.result()
    finally:
        if not has_ended or services.stopping.is_set():
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(cancel, services, job_id, limiter=call.threads)
    content = await run_in_threadpool(
        lambda: route.answer(chat_results.read(services, job_id)).model_dump(mode="json")
    )
    return JSONResponse(content)


def refusal(error: ActographError, instance: str) -> Response:
    """Answer an error as OpenAI's clients expect; they must not retry a failed request."""
    answer = actograph_problem(error, instance, status=chat_results.status_of(error))
    if isinstance(error, chat_results.ChatFailed) and error.status != 503:
        answer.headers["x-should-retry"] = "false"
    return answer
