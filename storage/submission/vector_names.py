"""References to stored vectors: an id, the unique beginning of one, `NAME`, or `NAME@HOOK`."""

import re

import sqlalchemy as sa
from sqlalchemy.orm import Session, defer

from actograph.contract import hooks
from actograph.contract.errors import InvalidRequest, NotFound
from actograph.contract.interventions import ID_START
from actograph.contract.suggestions import did_you_mean
from storage.index import pages
from storage.index.ids import is_id
from storage.tables.models import VectorRow

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


def _canonical(hook: str) -> str:
    return hooks.canonical(hook) or hook
