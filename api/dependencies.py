"""Dependencies of the endpoints: services, pages and ids."""

import inspect
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from hashlib import sha256
from typing import Annotated, Any, ParamSpec, TypeVar, get_origin

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Header, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.dependencies.models import Dependant
from pydantic import BaseModel

from actograph.contract.errors import Forbidden, InvalidRequest
from actograph.contract.roles import Role
from actograph.contract.suggestions import did_you_mean
from actograph.settings import Settings
from api.served_models import ServedModels, Structures
from evals.user_functions.functions import UserFunctions
from storage.artifacts.store import ArtifactStore
from storage.broker.broker import Broker
from storage.index import disk_reserve
from storage.index.database import Database
from storage.index.ids import is_beginning
from storage.index.pages import Order, PageOptions, full_id
from storage.jobs.request_keys import RequestKey
from storage.sessions.filter import SessionFilter

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Services:
    """Index, store, broker and settings: opened once, shared by all requests."""

    settings: Settings
    database: Database
    store: ArtifactStore
    broker: Broker
    models: ServedModels
    structures: Structures = field(default_factory=Structures)
    #: scorers of the operator
    scorers: UserFunctions = field(default_factory=lambda: UserFunctions({}, seconds=1.0))
    #: the most urgent priority that the caller may use
    most_urgent: int = 0
    started_at: float = field(default_factory=time.time)
    #: threads of long requests; short ones always find a thread among the other 40
    slow_threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(8))
    #: set when the process must stop; event streams then end
    stopping: threading.Event = field(default_factory=threading.Event)


async def _all_services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def _services(request: Request) -> Services:
    """The services restricted to the caller's rows and priorities."""
    services, access = await _all_services(request), request.state.access
    if access.role is Role.ADMIN:
        return services
    floor = services.settings.submit_priority_floor
    return replace(services, most_urgent=floor, database=services.database.restricted_to(access.owner))


#: for answers without rows of one owner, such as sums over all
AllServicesDep = Annotated[Services, Depends(_all_services)]
ServicesDep = Annotated[Services, Depends(_services)]


def slow(endpoint: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Run an endpoint in the few threads of long requests."""

    @wraps(endpoint)
    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        services: Any = kwargs["services"]
        return await to_thread.run_sync(partial(endpoint, *args, **kwargs), limiter=services.slow_threads)

    return run


def require_priority(services: Services, priority: int) -> None:
    """Raises Forbidden if the priority is too urgent for the caller's role."""
    if priority < services.most_urgent:
        raise Forbidden(
            f"priority {priority} needs an API key of the role {Role.ADMIN}; this one may use "
            f"{services.most_urgent} to 9",
            param="priority",
        )


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


async def refuse_unknown_query(request: Request) -> None:
    """Refuse query parameters that the route does not declare, and repeated ones that have one value.

    Every route has this dependency: a misspelt filter of a deletion would delete more than it names.

    Raises:
        InvalidRequest: with the nearest parameter of the route.
    """
    if not request.query_params:
        return
    known = query_parameters(request.scope["route"].dependant)
    counts = Counter(name for name, _ in request.query_params.multi_items())
    for name, count in counts.items():
        if name not in known:
            hint = did_you_mean(name, known) or "; this route has none"
            raise InvalidRequest(f"unknown query parameter {name[:100]!r}{hint}", param=name[:100])
        if count > 1 and not known[name]:
            raise InvalidRequest(f"query parameter {name!r} is given {count} times; give it once", param=name)


def query_parameters(dependant: Dependant) -> dict[str, bool]:
    """Names of a route's query parameters, those of its dependencies included: whether it is a list."""
    found: dict[str, bool] = {}
    for parameter in dependant.query_params:
        info = parameter.field_info
        fields = {parameter.alias: info}
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            fields = {field.alias or name: field for name, field in info.annotation.model_fields.items()}
        found |= {name: get_origin(field.annotation) is list for name, field in fields.items()}
    for dependency in dependant.dependencies:
        found |= query_parameters(dependency)
    return found


async def use_reserve(request: Request) -> None:
    """Let requests that free space use the reserve of a full disk."""
    if request.method == "DELETE" or request.url.path == "/v1/store/gc":
        disk_reserve.prefer()


def paging(*, most: int = 100, order: Order = "desc") -> Any:
    """A dependency: the options of one page of at most `most` items, by default in this order."""

    async def page(
        limit: Annotated[int, Query(ge=1, le=most, description="Most items to return.")] = 20,
        after: Annotated[
            str | None, Query(max_length=64, description="Id of the previous page's last item.")
        ] = None,
        order: Annotated[Order, Query(description="By time of creation.")] = order,
    ) -> PageOptions:
        return PageOptions(limit=limit, after=after, order=order)

    return Depends(page)


PageDep = Annotated[PageOptions, paging()]


def _example(prefix: str) -> Any:
    return Path(examples=[f"{prefix}_8dd0b0a3c1c74dd3b4f6b65e06f0a6d2"])


def _id(prefix: str, name: str) -> Any:
    """A path parameter: an id, or the unique beginning of one, which becomes the full id.

    Without a match the text stays as it is, and is not found.
    """

    async def full(services: Services, **given: str) -> str:
        typed = given[name]
        if not is_beginning(typed, prefix):
            return typed
        return await run_in_threadpool(_completed, services, typed, prefix)

    ours = inspect.signature(full).parameters["services"]
    path = inspect.Parameter(name, ours.kind, annotation=Annotated[str, _example(prefix)])
    full.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [ours.replace(annotation=ServicesDep), path]
    )
    return Depends(full)


def _completed(services: Services, typed: str, prefix: str) -> str:
    """Raises InvalidRequest if several ids begin like this."""
    with services.database.read() as session:
        return full_id(session, typed, prefix)


def resolved(services: Services, wanted: SessionFilter) -> SessionFilter:
    """A filter with the full ids of its job and its source session, and the name of its model.

    Raises:
        InvalidRequest: several ids begin like one.
    """
    # sessions outlive the service of their model
    name = wanted.model and services.models.find(wanted.model)
    changes = {"model": name} if name else {}
    if wanted.job_id is not None and is_beginning(wanted.job_id, "job"):
        changes["job_id"] = _completed(services, wanted.job_id, "job")
    if wanted.source_session is not None and is_beginning(wanted.source_session, "ses"):
        changes["source_session"] = _completed(services, wanted.source_session, "ses")
    return wanted.model_copy(update=changes)


JobId = Annotated[str, _id("job", "job_id")]
LoadId = Annotated[str, _id("job", "load_id")]
SampleId = Annotated[str, _id("smp", "sample_id")]
SessionId = Annotated[str, _id("ses", "session_id")]
FileId = Annotated[str, _id("file", "file_id")]
#: ids, their beginnings and names, see `storage.submission.vector_names`
VectorId = Annotated[str, _example("vec")]
#: ids, their beginnings and names, see `storage.saes.saes`
SaeId = Annotated[str, _example("sae")]
BatchId = Annotated[str, _id("batch", "batch_id")]
KeyId = Annotated[str, _id("key", "key_id")]
