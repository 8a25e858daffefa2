"""The form that starts an analysis: from its fields to a spec."""

import json
from typing import Any

from pydantic import BaseModel, Field

from actograph.contract.errors import InvalidRequest

#: fields of single kinds
LABEL_KINDS = ("probe",)
VECTOR_KINDS = ("probe", "compare")
POSITION_KINDS = ("outliers",)


class AnalysisForm(BaseModel):
    """Fields of the form, as texts."""

    #: a spec in JSON, which replaces all other fields
    spec: str = ""
    kind: str = ""
    #: job ids and names of conditions, separated by commas or white space
    jobs: str = ""
    conditions: str = ""
    points: list[str] = Field(default_factory=list)
    layers: str = ""
    rows: str = ""
    label: str = ""
    store_as: str = ""
    positions: str = ""
    tags: str = ""


def spec_of(form: AnalysisForm) -> dict[str, Any]:
    """Make an analysis spec of the form's fields; empty fields keep their defaults.

    Raises:
        InvalidRequest: `spec` is not a JSON object, or `layers` are no layers.
    """
    if form.spec.strip():
        return _parsed(form.spec)
    spec: dict[str, Any] = {"kind": form.kind, "jobs": _listed(form.jobs)}
    if names := [one.strip() for one in form.conditions.split(",") if one.strip()]:
        spec["sessions"] = {"conditions": names}
    if form.points:
        spec["points"] = form.points
    if layers := form.layers.strip():
        spec["layers"] = _layers(layers)
    if rows := form.rows.strip():
        spec["rows"] = rows
    if form.kind in LABEL_KINDS and form.label.strip():
        spec["label"] = form.label.strip()
    if form.kind in VECTOR_KINDS and form.store_as.strip():
        spec["store_as"] = form.store_as.strip()
    if form.kind in POSITION_KINDS and form.positions:
        spec["positions"] = form.positions
    if tags := [one.strip() for one in form.tags.split(",") if one.strip()]:
        spec["tags"] = tags
    return spec


def _parsed(text: str) -> dict[str, Any]:
    try:
        made = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"the spec is not JSON: {error}", param="spec") from error
    if not isinstance(made, dict):
        raise InvalidRequest("the spec is not a JSON object", param="spec")
    return made


def _listed(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _layers(text: str) -> list[int] | str:
    """Layers as numbers, or the text of `all` and of a slice, which the spec checks."""
    if text == "all" or ":" in text:
        return text
    parts = _listed(text)
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise InvalidRequest(f"layers: {text[:40]!r} is not all, 4:20:2, or numbers", param="layers")
    return [int(part) for part in parts]
