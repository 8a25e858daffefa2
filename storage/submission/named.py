"""Uploads, stored vectors and SAEs that a spec names."""

from sqlalchemy.orm import Session

from actograph.contract.analyses import AnalysisSpec
from actograph.contract.errors import InvalidDataset, InvalidRequest, NotFound
from actograph.contract.interventions import StoredVector, each
from actograph.contract.readouts import ReadoutMetric
from actograph.contract.saes import Sae
from actograph.contract.specs import FileDataset
from storage.files import files
from storage.index.ids import is_id
from storage.index.pages import full_id
from storage.jobs.jobs import Spec
from storage.saes import saes
from storage.sessions import vectors
from storage.tables.models import FileRow

#: fields of specs that name a dataset
DATASETS = ("dataset", "fewshot_dataset")


def upload(session: Session, file_id: str, field: str, *, keep: bool = False) -> FileRow:
    """Find an upload by its id or the beginning of one.

    Args:
        keep: prevent its deletion until the transaction ends.

    Raises:
        InvalidDataset: there is no such upload.
        InvalidRequest: several ids begin like this.
    """
    try:
        return (files.keep if keep else files.get)(session, full_id(session, file_id, "file"))
    except NotFound:
        raise InvalidDataset(
            f"there is no file {file_id}; upload it through /v1/files", param=f"{field}.file_id"
        ) from None


def stored_vectors(
    session: Session, spec: Spec | AnalysisSpec, *, keep: bool = False
) -> dict[str, StoredVector]:
    """Stored vectors that a spec names, by the intervention's or readout's field; `keep` as in `upload`.

    Raises:
        InvalidRequest: there is no such vector.
    """
    named = [
        (one.vector_id, param, "vector_id")
        for param, one in each(getattr(spec, "interventions", ()), getattr(spec, "conditions", ()))
        if one.vector_id
    ]
    capture = getattr(spec, "capture", None)
    for place, readout in enumerate(capture.readouts if capture else ()):
        named.append((readout.vector, f"capture.readouts.{place}", "vector"))
    if isinstance(metric := getattr(spec, "metric", None), ReadoutMetric):
        named.append((metric.readout.vector, "metric.readout", "vector"))
    found = {}
    # sorted, since all locks are taken in one order
    for vector_id, param, field in sorted(named):
        try:
            row = (vectors.keep if keep else vectors.get)(session, vector_id)
        except NotFound:
            raise InvalidRequest(
                f"there is no vector {vector_id}; it was deleted, or is another owner's",
                param=f"{param}.{field}",
            ) from None
        found[param] = vectors.resource(row)
    return found


def stored_saes(session: Session, spec: Spec | AnalysisSpec, *, keep: bool = False) -> dict[str, Sae]:
    """Stored SAEs that a spec names, by the entry's field; `keep` as in `upload`. Raises InvalidRequest."""
    capture = getattr(spec, "capture", None)
    named = [(one.sae, f"capture.saes.{place}") for place, one in enumerate(capture.saes if capture else ())]
    named += [
        (one.sae, param)
        for param, one in each(getattr(spec, "interventions", ()), getattr(spec, "conditions", ()))
        if one.sae
    ]
    found = {}
    # sorted, since all locks are taken in one order
    for sae_id, param in sorted(named):
        try:
            found[param] = saes.resource((saes.keep if keep else saes.get)(session, sae_id))
        except NotFound:
            raise InvalidRequest(
                f"there is no SAE {sae_id}; it was deleted, or is another owner's", param=f"{param}.sae"
            ) from None
    return found


def keep_all(session: Session, spec: Spec | AnalysisSpec) -> None:
    """Prevent the deletion of what a spec names. Raises InvalidDataset or InvalidRequest."""
    named = [(getattr(spec, field, None), field) for field in DATASETS]
    uploads = [(one.file_id, field) for one, field in named if isinstance(one, FileDataset)]
    for file_id, field in sorted(uploads):
        upload(session, file_id, field, keep=True)
    stored_vectors(session, spec, keep=True)
    stored_saes(session, spec, keep=True)
    for one in getattr(spec, "uses", ()):
        keep, what = (vectors.keep, "vector") if is_id(one, "vec") else (saes.keep, "SAE")
        try:
            keep(session, one)
        except NotFound:
            raise InvalidRequest(f"{what} {one} was deleted while the requests were read") from None
