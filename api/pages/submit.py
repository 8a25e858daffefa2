"""The form that submits a job: a spec from its fields, with an estimate while it is filled in."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Depends, Request
from pydantic import ValidationError
from starlette.responses import Response

from actograph.contract.errors import ActographError, InvalidRequest
from actograph.contract.job_options import draft
from actograph.contract.job_specs import InvalidFields, JobSpec, job_spec_adapter
from actograph.contract.tasks import TaskName
from api.auth import READ, SUBMIT, Caller
from api.dependencies import ServicesDep
from api.middleware.bodies import nul_in
from api.pages.rendering import render, see_other
from api.routes.jobs import estimate_job, submit_job
from api.routes.models import list_models

router = APIRouter(include_in_schema=False, dependencies=[READ, SUBMIT])

#: forms of a dataset on the server; the client's form, a local file, is none here
_DATASETS = ("file_", "path:", "hub:")
_NUMBERS = {"limit": int, "epochs": int, "max_tokens": int, "seed": int, "temperature": float, "top_p": float}


async def _fields(request: Request) -> dict[str, str]:
    """The filled-in fields of the form; see `submit.html`."""
    form = (await request.form()).items()
    return {name: text.strip() for name, text in form if isinstance(text, str) and text.strip()}


Fields = Annotated[dict[str, str], Depends(_fields)]


@router.get("/submit")
def show_submit(request: Request, services: ServicesDep) -> Response:
    models = [one.id for one in list_models(services).data]
    values = {"models": models, "kinds": ("evaluation", "capture"), "tasks": get_args(TaskName)}
    return render(request, "submit.html", values)


@router.post("/submit/estimate")
async def show_estimate(request: Request, services: ServicesDep, by: Caller, fields: Fields) -> Response:
    """A part of the form's page: the job's JSON, and its estimate or error."""
    values: dict[str, Any] = {"body": None, "estimate": None, "trouble": ""}
    try:
        values["body"] = body_of(fields)
        values["estimate"] = await estimate_job(services=services, spec=_spec_of(values["body"]), by=by)
    except ActographError as error:
        values["trouble"] = error.message
    return render(request, "estimate.html", values)


@router.post("/submit")
def submit(services: ServicesDep, by: Caller, fields: Fields) -> Response:
    answer = submit_job(services, _spec_of(body_of(fields)), by)
    return see_other(f"/jobs/{json.loads(bytes(answer.body))['id']}")


def body_of(fields: Mapping[str, str]) -> dict[str, Any]:
    """The JSON of the job that a form describes. Its fields override those of `spec`.

    Raises:
        InvalidRequest: a field is not valid.
    """
    options: dict[str, Any] = {name: fields[name] for name in ("model", "capture") if name in fields}
    for name in filter(fields.__contains__, _NUMBERS):
        try:
            options[name] = _NUMBERS[name](fields[name])
        except ValueError:
            raise InvalidRequest(f"{name}: {fields[name][:40]!r} is not a number", param=name) from None
    if "tags" in fields:
        options["tags"] = [tag.strip() for tag in fields["tags"].split(",") if tag.strip()]
    if "conditions" in fields:
        options["conditions"] = _json(fields["conditions"], "conditions", list)
    if "dataset" in fields:
        if not fields["dataset"].startswith(_DATASETS):
            raise InvalidRequest("dataset: use file_..., path:... or hub:OWNER/NAME", param="dataset")
        options["dataset"] = fields["dataset"]
    if fields.get("kind") == "evaluation":
        if fields.get("task") not in get_args(TaskName):
            raise InvalidRequest("choose a task", param="task")
        options["task"] = fields["task"]
    elif "prompts" in fields:
        options["inputs"] = [line for line in fields["prompts"].splitlines() if line.strip()]
    body = {"kind": fields.get("kind", "capture")} | _json(fields.get("spec", "{}"), "spec", dict)
    return draft(options, body).body


def _json(text: str, field: str, kind: type) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"{field} is not JSON: {error}", param=field) from None
    if not isinstance(value, kind):
        raise InvalidRequest(f"{field} is not a JSON {'list' if kind is list else 'object'}", param=field)
    return value


def _spec_of(body: dict[str, Any]) -> JobSpec:
    if fault := nul_in(json.dumps(body).encode()):
        raise InvalidRequest(f"the job contains {fault}")
    try:
        return job_spec_adapter.validate_python(body)
    except ValidationError as error:
        raise InvalidFields(error.errors(include_url=False), body) from None
