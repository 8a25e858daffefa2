"""/v1/chat/completions and /v1/completions in OpenAI's form. Requests run through the job queue."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from actograph.contract.chat import ChatCompletionRequest, CompletionRequest
from actograph.contract.chat_answers import ChatCompletion, Completion
from actograph.contract.chat_job import ChatJobSpec
from actograph.contract.errors import ActographError, Conflict, NotFound
from api import chat_requests, chat_results
from api.auth import caller
from api.chat_results import ChatResult
from api.dependencies import Services, ServicesDep
from api.errors import actograph_problem, documented
from api.job_ends import JobEnds
from api.request_body import body_of, json_body
from api.validation import parse_body
from storage import jobs

router = APIRouter(prefix="/v1", tags=["chat"])

Body = Annotated[bytes, Depends(json_body)]
#: what nginx writes into its log for a client that went away
CLIENT_CLOSED_REQUEST = 499


@dataclass(frozen=True)
class Call:
    """A request, and what answers it."""

    http: Request
    services: Services
    ends: JobEnds
    owner: str


async def _call(http: Request, services: ServicesDep, by: Annotated[str, Depends(caller)]) -> Call:
    return Call(http, services, http.app.state.job_ends, by)


CallDep = Annotated[Call, Depends(_call)]


@router.post(
    "/chat/completions",
    operation_id="create_chat_completion",
    summary="Answer a conversation",
    response_model=ChatCompletion,
    responses=documented(400, 404, 409, 413, 415, 503, 504),
    openapi_extra=body_of("ChatCompletionRequest"),
)
async def create_chat_completion(call: CallDep, body: Body) -> Response:
    """OpenAI's chat completion, and its activations where `capture` or `store_activations` asks for them."""

    def spec() -> ChatJobSpec:
        return chat_requests.chat_spec(parse_body(ChatCompletionRequest, body), call.services)

    return await _answer(call, spec, chat_results.chat_completion)


@router.post(
    "/completions",
    operation_id="create_completion",
    summary="Continue texts",
    response_model=Completion,
    responses=documented(400, 404, 409, 413, 415, 503, 504),
    openapi_extra=body_of("CompletionRequest"),
)
async def create_completion(call: CallDep, body: Body) -> Response:
    """OpenAI's text completion: a prompt, several, or token ids."""

    def spec() -> ChatJobSpec:
        return chat_requests.completion_spec(parse_body(CompletionRequest, body), call.services)

    return await _answer(call, spec, chat_results.completion)


async def _answer(
    call: Call, spec: Callable[[], ChatJobSpec], shown: Callable[[ChatResult], BaseModel]
) -> Response:
    """Submit, wait for the end, and answer; a client that goes away ends its job."""
    services = call.services
    try:
        job_id = await run_in_threadpool(lambda: chat_requests.submit(services, spec(), call.owner))
        has_ended = False
        try:
            has_ended = await _ended(call, job_id)
        finally:
            if not has_ended:
                await asyncio.shield(run_in_threadpool(cancel, services, job_id))
        if not has_ended:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        content = await run_in_threadpool(
            lambda: shown(chat_results.read(services, job_id)).model_dump(mode="json")
        )
        return JSONResponse(content)
    except ActographError as error:
        return refusal(error, call.http.url.path)


def refusal(error: ActographError, instance: str) -> Response:
    """The error as OpenAI's clients expect it; they must not repeat what ran and failed."""
    answer = actograph_problem(error, instance, status=chat_results.status_of(error))
    if isinstance(error, chat_results.ChatFailed) and error.status != 503:
        answer.headers["x-should-retry"] = "false"
    return answer


async def _ended(call: Call, job_id: str) -> bool:
    """Whether the job has ended; False where the client went away first."""
    ended = asyncio.create_task(call.ends.wait(job_id))
    gone = asyncio.create_task(_disconnected(call.http))
    try:
        await asyncio.wait({ended, gone}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            ended.result()
            return True
        return False
    finally:
        for task in (ended, gone):
            task.cancel()
        await asyncio.gather(ended, gone, return_exceptions=True)


async def _disconnected(http: Request) -> None:
    """Returns when the client has closed the connection; its body was read before."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


def cancel(services: Services, job_id: str) -> None:
    """Nobody waits for the answer any more."""
    with suppress(NotFound, Conflict), services.database.write() as session:
        jobs.cancel(session, job_id)
