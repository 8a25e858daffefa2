"""/v1/chat/completions and /v1/completions, in OpenAI's form. Requests run through the job queue."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response, StreamingResponse

from actograph.contract.errors import ActographError
from actograph.contract.openai import ChatCompletionRequest, CompletionBase, CompletionRequest
from actograph.contract.openai_answers import ChatCompletion, Completion
from api.auth import SUBMIT, Caller
from api.dependencies import Services, ServicesDep
from api.errors import CLIENT_CLOSED_REQUEST, problem_of
from api.openai import chat_requests, chat_results, chat_stream
from api.openai.chat_stream import ChatChunks, CompletionChunks
from api.openai.chat_watch import Running, first_of
from api.reading import sse

router = APIRouter(prefix="/v1", tags=["chat"], dependencies=[SUBMIT])


ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with `stream` Server-Sent Events, the last of which is `[DONE]`.",
        "content": sse.DOCUMENTED,
    }
}


@router.post(
    "/chat/completions",
    summary="Answer a conversation",
    response_model=ChatCompletion,
    responses=ANSWERS,
)
async def create_chat_completion(
    http: Request, services: ServicesDep, by: Caller, request: ChatCompletionRequest
) -> Response:
    """OpenAI's chat completion, with activations if `capture` or `store_activations` asks for them."""
    return await _answer(http, services, by, request, ChatChunks())


@router.post(
    "/completions",
    summary="Continue texts",
    response_model=Completion,
    responses=ANSWERS,
)
async def create_completion(
    http: Request, services: ServicesDep, by: Caller, request: CompletionRequest
) -> Response:
    """OpenAI's text completion: a prompt, several, or token ids."""
    return await _answer(http, services, by, request, CompletionChunks())


async def _answer(
    http: Request, services: Services, owner: str, request: CompletionBase, chunks: chat_stream.Chunks
) -> Response:
    """Submit and answer, whole or streamed. A client that disconnects cancels its job."""

    def submit() -> Running:
        spec = chat_requests.job_spec(request, services)
        job, samples = chat_requests.submit_chat(services, spec, owner)
        return Running(services=services, watch=http.app.state.chats, job=job, samples=samples)

    def read(job_id: str) -> dict[str, Any]:
        return chat_results.answer(chat_results.read(services, job_id)).model_dump(mode="json")

    try:
        running = await run_in_threadpool(submit)
        if not request.stream:
            end = asyncio.ensure_future(running.end())
            if not await first_of(end, http):
                return Response(status_code=CLIENT_CLOSED_REQUEST)
            end.result()
            return JSONResponse(await run_in_threadpool(read, running.job.id))
        include_usage = request.stream_options is not None and request.stream_options.include_usage
        events = chat_stream.stream(running, chunks, include_usage=include_usage)
        first = asyncio.ensure_future(anext(events))
        # before the first text an error is an answer of its own
        if not await first_of(first, http):
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        stream = chat_stream.guarded(first.result(), events)
        return StreamingResponse(stream, headers=sse.HEADERS, media_type="text/event-stream")
    except ActographError as error:
        # OpenAI's clients must not send a failed request again
        refusal = problem_of(error, http.url.path, status=chat_results.status_of(error))
        if isinstance(error, chat_results.ChatFailed) and error.status != 503:
            refusal.headers["x-should-retry"] = "false"
        return refusal
