"""/v1/chat/completions and /v1/completions, in OpenAI's form. Requests run through the job queue."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response, StreamingResponse

from actograph.contract.openai import ChatCompletionRequest, CompletionBase, CompletionRequest
from actograph.contract.openai_answers import ChatCompletion, Completion
from api.auth import SUBMIT, Caller
from api.dependencies import Services, ServicesDep
from api.openai import chat_requests, chat_results, chat_stream
from api.openai.chat_watch import Running
from api.reading import sse

ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with `stream` Server-Sent Events, the last of which is `[DONE]`.",
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


async def _answer(http: Request, services: Services, owner: str, request: CompletionBase) -> Response:
    """Submit and answer, whole or streamed. A client that disconnects cancels its job."""

    def read() -> dict[str, Any]:
        return chat_results.read(services, job.id).model_dump(mode="json")

    job, samples = await run_in_threadpool(chat_requests.submit_chat, services, request, owner)
    running = Running(services=services, http=http, job=job, samples=samples)
    if not request.stream:
        async for _ in running.pieces(texts=False):
            pass
        return JSONResponse(await run_in_threadpool(read))
    include_usage = request.stream_options is not None and request.stream_options.include_usage
    events = chat_stream.stream(running, include_usage=include_usage)
    # before the first text an error is an answer of its own
    first = await anext(events)
    stream = chat_stream.guarded(first, events)
    return StreamingResponse(stream, headers=sse.HEADERS, media_type="text/event-stream")
