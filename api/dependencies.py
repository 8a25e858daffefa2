"""Dependencies of the endpoints: services, pages and checked ids."""

import threading
import time
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Annotated, Any

from anyio import CapacityLimiter
from fastapi import Depends, Header, Path, Query, Request
from pydantic import AfterValidator, BaseModel
from starlette.requests import HTTPConnection

from actograph.contract.errors import Forbidden, InvalidRequest, NotFound
from actograph.roles import Role
from actograph.settings import Settings
from api.served_models import ServedModels, Structures
from storage.artifacts.store import ArtifactStore
from storage.broker.broker import Broker
from storage.index import disk_reserve, ids
from storage.index.database import Database
from storage.index.pages import Order, PageOptions
from storage.jobs.request_keys import RequestKey


@dataclass(frozen=True, kw_only=True)
class Services:
    """Index, store, broker and settings: opened once, shared by all requests."""

    settings: Settings
    database: Database
    store: ArtifactStore
    broker: Broker
    models: ServedModels
    structures: Structures = field(default_factory=Structures)
    #: the most urgent priority that the caller may use
    most_urgent: int = 0
    started_at: float = field(default_factory=time.time)
    #: threads of long requests; short ones always find a thread among the other 40
    slow_threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(8))
    #: set when the process must stop; event streams then end
    stopping: threading.Event = field(default_factory=threading.Event)


async def _all_services(connection: HTTPConnection) -> Services:
    services: Services = connection.app.state.services
    return services


#: for answers without rows of one owner, such as sums over all
AllServicesDep = Annotated[Services, Depends(_all_services)]


async def _services(connection: HTTPConnection) -> Services:
    """The services restricted to the caller's rows and priorities."""
    services = await _all_services(connection)
    access = connection.state.access
    if access.role is not Role.ADMIN:
        services = replace(services, most_urgent=services.settings.submit_priority_floor)
    if access.sees_only is not None:
        services = replace(services, database=services.database.restricted_to(access.sees_only))
    return services


def require_priority(services: Services, priority: int) -> None:
    """Raises Forbidden if the priority is too urgent for the caller's role."""
    if priority < services.most_urgent:
        raise Forbidden(
            f"priority {priority} needs an API key of the role {Role.ADMIN}; this one may use "
            f"{services.most_urgent} to 9",
            param="priority",
        )


ServicesDep = Annotated[Services, Depends(_services)]

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        pattern=r"^[\x20-\x7e]+$",
        description="Makes the request safe to repeat: the same key and body make one job.",
    ),
]


def request_key(key: str | None, body: BaseModel) -> RequestKey | None:
    """The Idempotency-Key of a request with the digest of its body; None without a key."""
    if key is None:
        return None
    return RequestKey(key=key, sha256=sha256(body.model_dump_json().encode()).hexdigest())


_FREEING_PATHS = frozenset({"/v1/store/gc"})


async def use_reserve(request: Request) -> None:
    """Let requests that free space use the reserve of a full disk."""
    if request.method == "DELETE" or request.url.path in _FREEING_PATHS:
        disk_reserve.prefer()


async def refuse_nul(request: Request) -> None:
    """Raises InvalidRequest for a NUL character in the query, which Postgres cannot compare."""
    for name, value in request.query_params.multi_items():
        if "\0" in value or "\0" in name:
            raise InvalidRequest("a query parameter contains a NUL character", param=name.replace("\0", ""))


Limit = Annotated[int, Query(ge=1, le=100, description="Most items to return.")]
After = Annotated[str | None, Query(max_length=64, description="Id of the previous page's last item.")]
NewestFirst = Annotated[Order, Query(description="By time of creation.")]


async def _page(limit: Limit = 20, after: After = None, order: NewestFirst = "desc") -> PageOptions:
    return PageOptions(limit=limit, after=after, order=order)


PageDep = Annotated[PageOptions, Depends(_page)]


def known_id(text: str, prefix: str, noun: str) -> str:
    """Return `text` if it has the form of an id. Raises NotFound if not."""
    if not ids.is_id(text, prefix):
        raise NotFound(f"no {noun} has this id; ids look like {prefix}_<32 hex digits>")
    return text


def _example(prefix: str) -> Any:
    return Path(examples=[f"{prefix}_8dd0b0a3c1c74dd3b4f6b65e06f0a6d2"])


def _id(prefix: str, noun: str) -> AfterValidator:
    return AfterValidator(lambda text: known_id(text, prefix, noun))


JobId = Annotated[str, _example("job"), _id("job", "job")]
LoadId = Annotated[str, _example("job"), _id("job", "model load")]
SampleId = Annotated[str, _example("smp"), _id("smp", "sample")]
SessionId = Annotated[str, _example("ses"), _id("ses", "session")]
FileId = Annotated[str, _example("file"), _id("file", "file")]
VectorId = Annotated[str, _example("vec"), _id("vec", "vector")]
BatchId = Annotated[str, _example("batch"), _id("batch", "batch")]
KeyId = Annotated[str, _example("key"), _id("key", "key")]
