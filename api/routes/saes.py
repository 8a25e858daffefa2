"""/v1/saes: stored SAEs, with which captures encode."""

from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy.exc import SQLAlchemyError

from actograph.contract import hooks
from actograph.contract.base import Deleted, ListPage
from actograph.contract.errors import Conflict, InvalidRequest
from actograph.contract.models import ModelStructure
from actograph.contract.saes import NewSae, Sae
from api.auth import READ, SUBMIT, Caller
from api.dependencies import PageDep, SaeId, ServicesDep
from storage.accounts import quotas
from storage.files import files
from storage.index import pages
from storage.jobs import uses
from storage.queue import pause
from storage.saes import sae_files, saes
from storage.saes.sae_files import SaeFiles

router = APIRouter(prefix="/v1/saes", tags=["saes"], dependencies=[READ])

#: purpose of the file of weights
PURPOSE = "sae"


@router.post("", summary="Store an SAE", dependencies=[SUBMIT], status_code=201)
def store_sae(services: ServicesDep, new: NewSae, by: Caller) -> Sae:
    """Read an SAE in SAELens' format from a folder of the server or from the Hub, and keep its weights.

    An SAE that cannot be computed exactly is refused with the reason.
    """
    if new.model is not None:
        new = new.model_copy(update={"model": services.models.require(new.model)})
    with services.database.read() as session:
        saes.require_free(session, new.name)
        structure = None if new.model is None else services.structures.find(session, new.model)
    found = sae_files.read(new, services.settings.data_roots)
    hook = _hook(new, found, structure)
    pause.require_room(services.store, services.settings.disk_floor_bytes, found.size)
    with services.database.write() as session:
        room = quotas.read(session, services.settings)
        room.require(by, found.size, "the SAE", param="path" if new.hub is None else "hub")
        name = f"{new.name}.safetensors"
        file_id = files.announce(session, filename=name, purpose=PURPOSE, size=found.size, owner=by)
    try:
        size, sha256 = services.store.put_stream(f"files/{file_id}", found.pieces())
        with services.database.write() as session:
            file = files.publish(session, file_id, size=size, sha256=sha256)
            return saes.resource(saes.insert(session, new, found.config, file, hook=hook, owner=by))
    except BaseException:
        with suppress(SQLAlchemyError), services.database.write() as session:
            files.abandon(session, file_id)
        raise


def _hook(new: NewSae, found: SaeFiles, structure: ModelStructure | None) -> str:
    """The hook of the request or of the files, by its canonical name if that is known.

    Raises:
        InvalidRequest: neither names one, or its rows are not as wide as the SAE.
        UnknownHook: the model has no such hook.
    """
    name = new.hook or found.hook
    if name is None:
        raise InvalidRequest("the files name no hook; give hook, such as resid_post.8", param="hook")
    if structure is None:
        return hooks.canonical(name) or name
    return hooks.of_rows(name, structure, found.config.d_in, said="the SAE takes rows of", param="hook")


@router.get("", summary="List SAEs")
def list_saes(
    services: ServicesDep,
    page: PageDep,
    name: Annotated[str | None, Query(max_length=64)] = None,
    hook: Annotated[str | None, Query(max_length=256)] = None,
    model: Annotated[str | None, Query(max_length=1024)] = None,
) -> ListPage[Sae]:
    with services.database.read() as session:
        return pages.page(*saes.find(session, name=name, hook=hook, model=model, **page), saes.resource)


@router.get("/{sae_id}", summary="One SAE")
def get_sae(services: ServicesDep, sae_id: SaeId) -> Sae:
    """`sae_id` is an id, the unique beginning of one, or a name."""
    with services.database.read() as session:
        return saes.resource(saes.get(session, saes.full_id(session, sae_id)))


@router.delete("/{sae_id}", summary="Delete an SAE that no active job uses", dependencies=[SUBMIT])
def delete_sae(services: ServicesDep, sae_id: SaeId) -> Deleted:
    """`sae_id` is that of GET. Stored latents stay."""
    with services.database.write() as session:
        sae_id = saes.full_id(session, sae_id)
        user = uses.user_of(session, sae_id)
        if user is not None:
            raise Conflict(f"job {user} uses SAE {sae_id}; wait for its end or cancel it first")
        saes.delete(session, sae_id)
    return Deleted(id=sae_id, object="sae")
