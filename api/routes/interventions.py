"""/v1/interventions: vectors that jobs' interventions refer to."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from actograph.contract.errors import Conflict
from actograph.contract.interventions import NewVector, StoredVector, VectorInfo, check_width, resolve_hook
from actograph.contract.resources import Deleted, ListPage
from api.dependencies import PageDep, ServicesDep, known_id
from api.problems.errors import documented
from api.problems.validation import parse_body
from api.requests.request_body import body_of, json_body
from api.security.auth import caller
from storage.index import pages
from storage.sessions import vectors

router = APIRouter(prefix="/v1/interventions", tags=["interventions"])


@router.post(
    "",
    operation_id="store_vector",
    summary="Store a vector",
    status_code=201,
    response_model=VectorInfo,
    responses=documented(413, 415, 422),
    openapi_extra=body_of("NewVector"),
)
def store_vector(
    services: ServicesDep,
    body: Annotated[bytes, Depends(json_body)],
    by: Annotated[str, Depends(caller)],
) -> VectorInfo:
    new = parse_body(NewVector, body)
    if new.model is not None:
        new = new.model_copy(update={"model": services.models.require(new.model)})
    with services.database.write() as session:
        structure = None if new.model is None else services.structures.find(session, new.model)
        if structure is not None:
            hook = resolve_hook(new.hook, structure, "hook")
            known = structure.tensor_of(hook)
            if known is not None:
                check_width(hook, len(new.vector), known.width, "vector")
            new = new.model_copy(update={"hook": hook})
        return vectors.info(vectors.insert(session, new, owner=by))


@router.get(
    "",
    operation_id="list_vectors",
    summary="List vectors, without their numbers",
    response_model=ListPage[VectorInfo],
    responses=documented(422),
)
def list_vectors(
    services: ServicesDep,
    page: PageDep,
    name: Annotated[str | None, Query(max_length=64)] = None,
    model: Annotated[str | None, Query(max_length=1024)] = None,
) -> ListPage[VectorInfo]:
    with services.database.read() as session:
        rows, has_more = vectors.find(
            session, name=name, model=model, after=page.after, limit=page.limit, order=page.order
        )
        return pages.page(rows, has_more, vectors.info)


@router.get(
    "/{vector_id}",
    operation_id="get_vector",
    summary="One vector with its numbers",
    response_model=StoredVector,
    responses=documented(404, 422),
)
def get_vector(services: ServicesDep, vector_id: str) -> StoredVector:
    with services.database.read() as session:
        return vectors.resource(vectors.get(session, known_id(vector_id, "vec", "vector")))


@router.delete(
    "/{vector_id}",
    operation_id="delete_vector",
    summary="Delete a vector that no active job refers to",
    response_model=Deleted,
    responses=documented(404, 409, 422),
)
def delete_vector(services: ServicesDep, vector_id: str) -> Deleted:
    known_id(vector_id, "vec", "vector")
    with services.database.write() as session:
        vectors.lock(session, vector_id)
        user = vectors.user_of(session, vector_id)
        if user is not None:
            raise Conflict(f"job {user} uses vector {vector_id}; wait for its end or cancel it first")
        vectors.delete(session, vector_id)
    return Deleted(id=vector_id, object="intervention.vector")
