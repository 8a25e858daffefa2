"""The vectors, SAEs and sessions that a spec names: by an id, the unique beginning of one, or a name."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from sqlalchemy.orm import Session

from actograph.contract.errors import Conflict, InvalidRequest, NotFound
from actograph.contract.interventions import Intervention, each
from actograph.contract.readouts import ReadoutCapture, ReadoutMetric
from actograph.contract.specs import ModelJobSpec
from storage.index import pages
from storage.index.ids import is_id
from storage.saes import saes
from storage.submission import vector_names

S = TypeVar("S", bound=ModelJobSpec)


def has_short_ones(spec: ModelJobSpec) -> bool:
    """Whether a spec names a vector, an SAE or a session otherwise than by its full id."""
    return any(not is_id(reference, prefix) for prefix, reference in _named(spec))


def _named(spec: ModelJobSpec) -> Iterator[tuple[str, str]]:
    """References of a spec, each with the prefix of its full id."""
    for _, one in each(getattr(spec, "interventions", ()), getattr(spec, "conditions", ())):
        if one.vector_id is not None:
            yield "vec", one.vector_id
        if one.sae is not None:
            yield "sae", one.sae
        if one.source is not None:
            yield "ses", one.source.session
    if spec.capture is not None:
        yield from (("sae", one.sae) for one in spec.capture.saes)
        yield from (("vec", one.vector) for one in spec.capture.readouts)
    if isinstance(metric := getattr(spec, "metric", None), ReadoutMetric):
        yield "vec", metric.readout.vector


def with_full_ids(session: Session, spec: S) -> S:
    """The spec with full ids.

    Raises:
        InvalidRequest: there is no such vector, SAE or session, or the reference is not unique; the error
            names the field.
    """

    def vector(reference: str, hook: str | None, param: str) -> str:
        return _full(lambda: vector_names.full_id(session, reference, hook=hook, model=spec.model), param)

    def sae(reference: str, param: str) -> str:
        return _full(lambda: saes.full_id(session, reference), param)

    def edit(one: Intervention, param: str) -> Intervention:
        changes: dict[str, object] = {}
        if one.source is not None:
            full = pages.full_id(session, one.source.session, "ses")
            changes["source"] = one.source.model_copy(update={"session": full})
        if one.vector_id is not None:
            changes["vector_id"] = vector(one.vector_id, one.hook, f"{param}.vector_id")
        if one.sae is not None:
            changes["sae"] = sae(one.sae, f"{param}.sae")
        return one.model_copy(update=changes) if changes else one

    def edits(some: Sequence[Intervention], param: str) -> list[Intervention]:
        return [edit(one, f"{param}interventions.{i}") for i, one in enumerate(some)]

    def readout(one: ReadoutCapture, param: str) -> ReadoutCapture:
        return one.model_copy(update={"vector": vector(one.vector, one.hook, f"{param}.vector")})

    changes: dict[str, object] = {}
    if some := getattr(spec, "interventions", None):
        changes["interventions"] = edits(some, "")
    if (capture := spec.capture) is not None:
        entries = [
            one.model_copy(update={"sae": sae(one.sae, f"capture.saes.{i}.sae")})
            for i, one in enumerate(capture.saes)
        ]
        readouts = [readout(one, f"capture.readouts.{i}") for i, one in enumerate(capture.readouts)]
        changes["capture"] = capture.model_copy(update={"saes": entries, "readouts": readouts})
    if isinstance(metric := getattr(spec, "metric", None), ReadoutMetric):
        full_readout = readout(metric.readout, "metric.readout")
        changes["metric"] = metric.model_copy(update={"readout": full_readout})
    if conditions := getattr(spec, "conditions", None):
        changes["conditions"] = [
            condition.model_copy(update={"interventions": edits(condition.interventions, f"conditions.{i}.")})
            for i, condition in enumerate(conditions)
        ]
    return spec.model_copy(update=changes)


def _full(find: Callable[[], str], param: str) -> str:
    try:
        return find()
    except (NotFound, InvalidRequest, Conflict) as error:
        raise InvalidRequest(error.message, param=param) from None
