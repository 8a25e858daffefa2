"""References to stored vectors: an id, the unique beginning of one, `NAME`, or `NAME@HOOK`."""

import re
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session, defer

from actograph.contract import hooks
from actograph.contract.errors import InvalidRequest, NotFound
from actograph.contract.interventions import ID_START, Intervention, each
from actograph.contract.readouts import ReadoutCapture
from actograph.contract.specs import ModelJobSpec
from actograph.contract.suggestions import did_you_mean
from storage.index import pages
from storage.index.ids import is_id
from storage.tables.models import VectorRow

S = TypeVar("S", bound=ModelJobSpec)
#: vectors that an error lists
_LISTED = 8


def full_id(session: Session, reference: str, *, hook: str | None = None, model: str | None = None) -> str:
    """The id of the vector that a reference names; a full id is not looked up.

    Args:
        hook: where it is used; a name stands for the vector of this hook.
        model: that it is used with; a name stands for a vector of this model, or of no particular one.

    Raises:
        NotFound: there is no such vector.
        InvalidRequest: several different vectors have this name, or ids begin like this.
    """
    if is_id(reference, "vec"):
        return reference
    found = sa.select(VectorRow).options(defer(VectorRow.data, raiseload=True))
    if re.fullmatch(ID_START, reference):
        known = pages.only_id(session, reference)
        if known is None:
            raise NotFound(f"no vector has the id {reference}")
        return known
    name, _, named = reference.partition("@")
    wanted = named or hook
    newest_first = found.where(VectorRow.name == name).order_by(VectorRow.created_at.desc(), VectorRow.id)
    rows = session.scalars(newest_first).all()
    if not rows:
        names = session.scalars(sa.select(VectorRow.name).distinct())
        raise NotFound(f"there is no vector {name}{did_you_mean(name, names) or '; none is stored'}")
    fitting = [
        row
        for row in rows
        if (wanted is None or _canonical(row.hook) == _canonical(wanted))
        and (model is None or row.model in (None, model))
    ]
    if not fitting:
        of_model = [row for row in rows if model is None or row.model in (None, model)]
        if not of_model:
            models = ", ".join(sorted({row.model for row in rows if row.model}))
            raise NotFound(f"the vector {name} is stored for the model {models}, not {model}")
        there = hooks.in_short(row.hook for row in of_model)
        raise NotFound(
            f"there is no vector {name} for {wanted}, but for {there}; name a vector of another hook by "
            "its id"
        )
    if len({(row.hook, row.sha256) for row in fitting}) > 1:
        places = {row.hook for row in fitting}
        if len(places) > 1:
            raise InvalidRequest(
                f"several vectors are named {reference}, for {hooks.in_short(places)}; name one with its "
                f"hook, such as {name}@{fitting[0].hook}"
            )
        shown = ", ".join(row.id for row in fitting[:_LISTED])
        raise InvalidRequest(f"several vectors are named {reference}: {shown}; name one by its id")
    return fitting[0].id


def with_full_ids(session: Session, spec: S) -> S:
    """The spec with the full ids of the vectors and sessions that its interventions and readouts name.

    Raises:
        InvalidRequest: there is no such vector, or the reference is not unique; the error names the field.
    """

    def named(one: Intervention, param: str) -> Intervention:
        if one.source is not None:
            full = pages.full_id(session, one.source.session, "ses")
            source = one.source.model_copy(update={"session": full})
            return one.model_copy(update={"source": source})
        if one.vector_id is None:
            return one
        try:
            vector_id = full_id(session, one.vector_id, hook=one.hook, model=spec.model)
        except (NotFound, InvalidRequest) as error:
            raise InvalidRequest(error.message, param=f"{param}.vector_id") from None
        return one.model_copy(update={"vector_id": vector_id})

    changes: dict[str, object] = {
        "interventions": [
            named(one, f"interventions.{i}") for i, one in enumerate(getattr(spec, "interventions", ()))
        ]
    }
    if spec.capture is not None and spec.capture.readouts:
        readouts = [
            one.model_copy(update={"vector": _of_readout(session, one, place, spec.model)})
            for place, one in enumerate(spec.capture.readouts)
        ]
        changes["capture"] = spec.capture.model_copy(update={"readouts": readouts})
    if conditions := getattr(spec, "conditions", None):
        changes["conditions"] = [
            condition.model_copy(
                update={
                    "interventions": [
                        named(one, f"conditions.{place}.interventions.{i}")
                        for i, one in enumerate(condition.interventions)
                    ]
                }
            )
            for place, condition in enumerate(conditions)
        ]
    return spec.model_copy(update=changes)


def _of_readout(session: Session, one: ReadoutCapture, place: int, model: str) -> str:
    try:
        return full_id(session, one.vector, hook=one.hook, model=model)
    except (NotFound, InvalidRequest) as error:
        raise InvalidRequest(error.message, param=f"capture.readouts.{place}.vector") from None


def has_short_ones(spec: ModelJobSpec) -> bool:
    """Whether an intervention or a readout names a vector or session otherwise than by its full id."""
    given = [one for _, one in each(getattr(spec, "interventions", ()), getattr(spec, "conditions", ()))]
    readouts = spec.capture.readouts if spec.capture else ()
    return any(not is_id(one.vector, "vec") for one in readouts) or any(
        (one.vector_id is not None and not is_id(one.vector_id, "vec"))
        or (one.source is not None and not is_id(one.source.session, "ses"))
        for one in given
    )


def _canonical(hook: str) -> str:
    return hooks.canonical(hook) or hook
