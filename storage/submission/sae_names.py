"""References to stored SAEs in a spec: an id, the unique beginning of one, or a name."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from sqlalchemy.orm import Session

from actograph.contract.errors import Conflict, InvalidRequest, NotFound
from actograph.contract.interventions import Intervention, each
from actograph.contract.specs import ModelJobSpec
from storage.index.ids import is_id
from storage.saes import saes

S = TypeVar("S", bound=ModelJobSpec)


def has_short_ones(spec: ModelJobSpec) -> bool:
    """Whether a spec names an SAE otherwise than by its full id."""
    return any(not is_id(reference, "sae") for reference in _named(spec))


def _named(spec: ModelJobSpec) -> Iterator[str]:
    yield from (one.sae for one in (spec.capture.saes if spec.capture else ()))
    for _, one in each(getattr(spec, "interventions", ()), getattr(spec, "conditions", ())):
        if one.sae is not None:
            yield one.sae


def with_full_ids(session: Session, spec: S) -> S:
    """The spec with the full ids of its SAEs.

    Raises:
        InvalidRequest: there is no such SAE, or the reference is not unique; the error names the field.
    """

    def named(edits: Sequence[Intervention], param: str) -> list[Intervention]:
        return [
            one
            if one.sae is None
            else one.model_copy(update={"sae": _full_id(session, one.sae, f"{param}interventions.{i}.sae")})
            for i, one in enumerate(edits)
        ]

    changes: dict[str, object] = {}
    if interventions := getattr(spec, "interventions", None):
        changes["interventions"] = named(interventions, "")
    if spec.capture is not None:
        entries = [
            one.model_copy(update={"sae": _full_id(session, one.sae, f"capture.saes.{place}.sae")})
            for place, one in enumerate(spec.capture.saes)
        ]
        changes["capture"] = spec.capture.model_copy(update={"saes": entries})
    if conditions := getattr(spec, "conditions", None):
        changes["conditions"] = [
            condition.model_copy(
                update={"interventions": named(condition.interventions, f"conditions.{place}.")}
            )
            for place, condition in enumerate(conditions)
        ]
    return spec.model_copy(update=changes)


def _full_id(session: Session, reference: str, param: str) -> str:
    try:
        return saes.full_id(session, reference)
    except (NotFound, InvalidRequest, Conflict) as error:
        raise InvalidRequest(error.message, param=param) from None
