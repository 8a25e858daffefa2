"""/v1/vectors: stored vectors for the interventions of jobs."""

from typing import Annotated

from fastapi import APIRouter, Query

from actograph.contract.base import Deleted, ListPage
from actograph.contract.errors import Conflict
from actograph.contract.interventions import NewVector, StoredVector, VectorInfo, check_width, resolve_hook
from api.auth import READ, SUBMIT, Caller
from api.dependencies import PageDep, ServicesDep, VectorId
from storage.index import pages
from storage.jobs import uses
from storage.sessions import vectors
from storage.submission import vector_names

router = APIRouter(tags=["vectors"], dependencies=[READ])


@router.post("", summary="Store a vector", dependencies=[SUBMIT], status_code=201)
def store_vector(services: ServicesDep, new: NewVector, by: Caller) -> VectorInfo:
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


@router.get("", summary="List vectors, without their numbers")
def list_vectors(
    services: ServicesDep,
    page: PageDep,
    name: Annotated[str | None, Query(max_length=64)] = None,
    hook: Annotated[str | None, Query(max_length=256)] = None,
    model: Annotated[str | None, Query(max_length=1024)] = None,
) -> ListPage[VectorInfo]:
    with services.database.read() as session:
        return pages.page(*vectors.find(session, name=name, hook=hook, model=model, **page), vectors.info)


@router.get("/{vector_id}", summary="One vector with its numbers")
def get_vector(services: ServicesDep, vector_id: VectorId) -> StoredVector:
    """`vector_id` is an id, the unique beginning of one, a name of a single vector, or `NAME@HOOK`."""
    with services.database.read() as session:
        return vectors.resource(vectors.get(session, vector_names.full_id(session, vector_id)))


@router.delete("/{vector_id}", summary="Delete a vector that no active job refers to", dependencies=[SUBMIT])
def delete_vector(services: ServicesDep, vector_id: VectorId) -> Deleted:
    """`vector_id` is that of GET."""
    with services.database.write() as session:
        vector_id = vector_names.full_id(session, vector_id)
        vectors.lock(session, vector_id)
        user = uses.user_of(session, vector_id)
        if user is not None:
            raise Conflict(f"job {user} uses vector {vector_id}; wait for its end or cancel it first")
        vectors.delete(session, vector_id)
    return Deleted(id=vector_id, object="vector")
