"""/v1/chat/completions, /v1/completions and /v1/responses, in OpenAI's form, through the job queue."""

from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response, StreamingResponse

from actograph.contract.openai import ChatCompletionRequest, CompletionBase, CompletionRequest
from actograph.contract.openai_answers import ChatCompletion, Completion
from api.auth import SUBMIT, Caller
from api.dependencies import Services, ServicesDep
from api.openai import (
    chat_results,
    chat_stream,
    response_answers,
    response_stream,
)
from api.openai.chat_watch import Running
from api.openai.response_requests import NAMES, ResponseRequest
from api.reading import sse

ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with `stream` Server-Sent Events, the last of which is `[DONE]`, or the "
        "whole response.",
        "content": sse.DOCUMENTED,
    }
}
router = APIRouter(prefix="/v1", tags=["chat"], dependencies=[SUBMIT], responses=ANSWERS)


@router.post("/chat/completions", summary="Answer a conversation", response_model=ChatCompletion)
async def create_chat_completion(
    http: Request, services: ServicesDep, by: Caller, request: ChatCompletionRequest
) -> Response:
    """OpenAI's chat completion, with activations if `capture` or `store_activations` asks for them."""
    return await _answer(http, services, by, request)


@router.post("/completions", summary="Continue texts", response_model=Completion)
async def create_completion(
    http: Request, services: ServicesDep, by: Caller, request: CompletionRequest
) -> Response:
    """OpenAI's text completion: a prompt, several, or token ids."""
    return await _answer(http, services, by, request)


@router.post("/responses", summary="Answer a response", response_model=response_answers.Response)
async def create_response(
    http: Request, services: ServicesDep, by: Caller, request: ResponseRequest
) -> Response:
    """OpenAI's response, without its store: `input` is the whole conversation."""

    def read() -> dict[str, Any]:
        chat = chat_results.read(services, running.job.id)
        assert isinstance(chat, ChatCompletion)
        return response_answers.ended(request, chat).model_dump(mode="json")

    running = await Running.of(http, services, by, request.chat(), NAMES)
    if request.stream:
        return await _streamed(response_stream.stream(running, request))
    async for _ in running.pieces(texts=False):
        pass
    return JSONResponse(await run_in_threadpool(read))


async def _answer(http: Request, services: Services, owner: str, request: CompletionBase) -> Response:
    """Submit and answer, whole or streamed. A client that disconnects cancels its job."""

    def read() -> dict[str, Any]:
        return chat_results.read(services, running.job.id).model_dump(mode="json")

    running = await Running.of(http, services, owner, request)
    if not request.stream:
        async for _ in running.pieces(texts=False):
            pass
        return JSONResponse(await run_in_threadpool(read))
    include_usage = request.stream_options is not None and request.stream_options.include_usage
    return await _streamed(chat_stream.stream(running, include_usage=include_usage))


async def _streamed(events: AsyncGenerator[str, None]) -> Response:
    # before the first text an error is an answer of its own
    first = await anext(events)
    stream = chat_stream.guarded(first, events)
    return StreamingResponse(stream, headers=sse.HEADERS, media_type="text/event-stream")
