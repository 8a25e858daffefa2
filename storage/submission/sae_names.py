"""References to stored SAEs in a spec: an id, the unique beginning of one, or a name."""

from typing import TypeVar

from sqlalchemy.orm import Session

from actograph.contract.errors import Conflict, InvalidRequest, NotFound
from actograph.contract.specs import JobSpecBase
from storage.index.ids import is_id
from storage.saes import saes

S = TypeVar("S", bound=JobSpecBase)


def has_short_ones(spec: JobSpecBase) -> bool:
    """Whether a spec names an SAE otherwise than by its full id."""
    return spec.capture is not None and any(not is_id(one.sae, "sae") for one in spec.capture.saes)


def with_full_ids(session: Session, spec: S) -> S:
    """The spec with the full ids of its SAEs.

    Raises:
        InvalidRequest: there is no such SAE, or the reference is not unique; the error names the field.
    """
    if spec.capture is None:
        return spec
    named = [
        one.model_copy(update={"sae": _full_id(session, one.sae, f"capture.saes.{place}.sae")})
        for place, one in enumerate(spec.capture.saes)
    ]
    return spec.model_copy(update={"capture": spec.capture.model_copy(update={"saes": named})})


def _full_id(session: Session, reference: str, param: str) -> str:
    try:
        return saes.full_id(session, reference)
    except (NotFound, InvalidRequest, Conflict) as error:
        raise InvalidRequest(error.message, param=param) from None
