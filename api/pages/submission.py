"""The form that submits a job: a spec from its fields, with an estimate while it is filled in."""

import json
from typing import Annotated, Any

from fastapi import Form, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import HTMLResponse, Response

from actograph.contract.errors import ActographError, InvalidRequest
from actograph.contract.hooks import POINTS
from api.dependencies import ServicesDep
from api.pages.rendering import render, see_other
from api.routes.jobs import estimate_job, submit_job
from api.routes.models import list_models
from api.routing import SUBMIT, Routes
from api.security.auth import Caller

router = Routes(include_in_schema=False)


class SpecForm(BaseModel):
    """Fields of the form, as texts."""

    #: a spec in JSON, which replaces all other fields
    spec: str = ""
    model: str = ""
    #: one on each line
    prompts: str = ""
    max_tokens: str = ""
    points: list[str] = Field(default_factory=list)
    layers: str = ""
    tags: str = ""


@router.add("GET", "/submit", SUBMIT, "Submit a job", response_class=HTMLResponse)
def show_submit(
    request: Request, services: ServicesDep, model: Annotated[str, Query(max_length=1024)] = ""
) -> Response:
    models = [one.id for one in list_models(services).data]
    values = {"models": models, "model": model, "points": list(POINTS), "trouble": ""}
    return render(request, "submit.html", values)


@router.add("POST", "/submit/estimate", SUBMIT, "Spec and estimate of a job", takes_form=True, lane="reads")
def show_estimate(
    request: Request,
    services: ServicesDep,
    by: Caller,
    form: Annotated[SpecForm, Form()],
) -> Response:
    """A part of the form's page: the JSON, its estimate or its error."""
    values: dict[str, Any] = {"spec": None, "estimate": None, "trouble": ""}
    try:
        values["spec"] = spec_of(form)
        values["estimate"] = estimate_job(services, json.dumps(values["spec"]).encode(), by)
    except ActographError as error:
        values["trouble"] = error.message
    return render(request, "parts/estimate.html", values)


@router.add("POST", "/submit", SUBMIT, "Submit a job", takes_form=True)
def submit(
    request: Request,
    services: ServicesDep,
    by: Caller,
    form: Annotated[SpecForm, Form()],
) -> Response:
    made = spec_of(form)
    answer = submit_job(services, json.dumps(made).encode(), by)
    return see_other(f"/jobs/{json.loads(bytes(answer.body))['id']}")


def spec_of(form: SpecForm) -> dict[str, Any]:
    """Make a job's spec of the form's fields.

    Raises:
        InvalidRequest: `spec` is not a JSON object, or a number is not a number.
    """
    if form.spec.strip():
        try:
            made = json.loads(form.spec)
        except ValueError as error:
            raise InvalidRequest(f"the spec is not JSON: {error}", param="spec") from error
        if not isinstance(made, dict):
            raise InvalidRequest("the spec is not a JSON object", param="spec")
        return made
    lines = [line for line in form.prompts.splitlines() if line.strip()]
    if not lines:
        raise InvalidRequest("write at least one prompt", param="prompts")
    spec: dict[str, Any] = {
        "kind": "capture",
        "model": form.model,
        "inputs": [{"prompt": line} for line in lines],
        "sampling": {"max_tokens": _whole(form.max_tokens or "64", "max_tokens")},
    }
    if form.points:
        spec["capture"] = {"points": form.points, "layers": _layers(form.layers)}
    if chosen := [tag.strip() for tag in form.tags.split(",") if tag.strip()]:
        spec["tags"] = chosen
    return spec


def _layers(text: str) -> list[int] | str:
    if text.strip() in ("", "all"):
        return "all"
    return [_whole(part, "layers") for part in text.split(",") if part.strip()]


def _whole(text: str, field: str) -> int:
    try:
        return int(text.strip())
    except ValueError:
        raise InvalidRequest(f"{field}: {text[:40]!r} is not a whole number", param=field) from None
