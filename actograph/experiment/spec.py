"""The experiment file: its fields, the jobs that it describes, and its JSON schema."""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from actograph.client.queries import Activations
from actograph.contract.base import Spec
from actograph.contract.errors import InvalidRequest
from actograph.contract.models.model_loads import ModelLoadRequest
from actograph.contract.specs import EvaluationSpec, job_spec_adapter, submitted_spec_adapter

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
STAGES = ("deploy", "model", "evaluate", "analyse", "fetch", "report")


def _one_job() -> dict[str, dict[str, Any]]:
    return {"main": {}}


class DeployStage(Spec):
    """The service of the experiment."""

    url: str | None = Field(None, description="URL of the service; null: ACTOGRAPH_URL, or this machine.")
    smoke: bool = Field(False, description="Run the smoke test first.")
    box: str | None = Field(
        None, description="Box to deploy to: a name of boxes.yaml, or user@host[:port] with `model`."
    )
    mode: Literal["reuse", "fresh", "frozen"] = Field("reuse", description="Flag of `actograph deploy`.")
    model: str | None = Field(None, description="Model of the box; null: that of boxes.yaml.")

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.box is not None and self.url is not None:
            raise ValueError("name a url or a box, not both")
        return self


class EvaluateStage(Spec):
    """Jobs of the experiment: `base`, changed by each of `jobs`, once for every combination of `sweep`."""

    base: dict[str, Any] = Field(
        default_factory=dict, description="Fields of all jobs. `dataset` may be a file beside the experiment."
    )
    jobs: dict[Name, dict[str, Any]] = Field(
        default_factory=_one_job, min_length=1, max_length=1000,
        description="Name of a job -> fields that replace those of `base`.",
    )  # fmt: skip
    sweep: dict[str, list[Any]] = Field(
        default_factory=dict, description="Field, with dots for nested ones -> values."
    )

    @field_validator("jobs", mode="before")
    @classmethod
    def _without_changes(cls, value: Any) -> Any:
        """`plain:` without anything is a job without changes."""
        return {k: {} if v is None else v for k, v in value.items()} if isinstance(value, dict) else value

    @field_validator("sweep")
    @classmethod
    def _has_values(cls, value: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for field, values in value.items():
            if not values:
                raise ValueError(f"{field}: give at least one value")
        return value


def _no_jobs() -> list[str]:
    return []


class AnalysisJob(Spec):
    """An analysis of the stored sessions of the experiment's jobs."""

    model_config = ConfigDict(extra="allow")

    kind: Literal["outliers", "probe", "compare"] = Field(description="Kind of the analysis.")
    of: list[str] = Field(default_factory=_no_jobs, description="Jobs of `evaluate`, by name; [] takes all.")

    def body(self, job_ids: Sequence[str]) -> dict[str, Any]:
        """The spec of the analysis job, for these jobs."""
        return {"kind": self.kind, "jobs": list(job_ids)} | (self.model_extra or {})


class AnalyseStage(Spec):
    """Analyses of the jobs of `evaluate`; they need an analysis worker."""

    jobs: dict[Name, AnalysisJob] = Field(
        min_length=1, max_length=100, description="Name of an analysis -> kind, `of`, and fields of its spec."
    )


class FetchStage(Spec):
    """Results to download."""

    activations: Activations = Field(
        "meta", description="none, meta, sampled or all; see the results folder."
    )


class ReportStage(Spec):
    """The report: scores of all jobs and comparisons of their conditions, as Markdown and JSON."""

    title: str | None = Field(None, max_length=200, description="Title; null: the experiment's name.")


class Experiment(Spec):
    """One experiment, from the service to the report. A stage that is missing is not run."""

    name: Name = Field(description="Name of the experiment and of its run folder.")
    deploy: DeployStage = Field(default_factory=DeployStage, description="The service.")
    model: ModelLoadRequest | None = Field(None, description="Model to load first.")
    evaluate: EvaluateStage | None = Field(None, description="Jobs to run.")
    analyse: AnalyseStage | None = Field(None, description="Analyses of the stored activations.")
    fetch: FetchStage | None = Field(None, description="Results to download.")
    report: ReportStage | None = Field(None, description="Report to write.")

    def stages(self) -> list[str]:
        """Stages that the file has, in their order."""
        return [name for name in STAGES if getattr(self, name) is not None]


def job_bodies(stage: EvaluateStage) -> dict[str, dict[str, Any]]:
    """Name -> body of every job, with a combination of the sweep in the name."""
    bodies = {}
    for name, changes in stage.jobs.items():
        for combination in itertools.product(*stage.sweep.values()):
            values = dict(zip(stage.sweep, combination, strict=True))
            body = _merged({"kind": "evaluation"} | stage.base, changes)
            for field, value in values.items():
                _set(body, field, value)
            parts = [
                name,
                *(f"{field.rpartition('.')[2]}-{_plain(value)}" for field, value in values.items()),
            ]
            bodies[".".join(parts)] = body
    return bodies


def analysed(experiment: "Experiment", job: AnalysisJob) -> list[str]:
    """Names of the evaluation jobs that an analysis reads. A name stands for all its combinations.

    Raises:
        InvalidRequest: the experiment has no such job.
    """
    names = list(job_bodies(experiment.evaluate)) if experiment.evaluate is not None else []
    found = []
    for wanted in job.of or names:
        matching = [name for name in names if name == wanted or name.startswith(f"{wanted}.")]
        if not matching:
            raise InvalidRequest(f"evaluate has no job {wanted!r}; it has {', '.join(names) or 'none'}")
        found += matching
    return list(dict.fromkeys(found))


def _plain(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)[:40]


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = json.loads(json.dumps(base))
    for field, value in changes.items():
        if isinstance(value, dict) and isinstance(merged.get(field), dict):
            merged[field] = _merged(merged[field], value)
        else:
            merged[field] = json.loads(json.dumps(value))
    return merged


def _set(body: dict[str, Any], field: str, value: Any) -> None:
    *outer, last = field.split(".")
    place = body
    for part in outer:
        if not isinstance(place.get(part), dict):
            place[part] = {}
        place = place[part]
    place[last] = value


def dataset_file(body: Mapping[str, Any], field: str, folder: Path) -> Path | None:
    """The local file that a job's dataset field names; None for datasets of the service or the Hub."""
    value = body.get(field)
    return folder / value if isinstance(value, str) else None


def schema() -> dict[str, Any]:
    """JSON schema of experiment files, for editors. Jobs have the fields of an evaluation, all optional."""
    found = Experiment.model_json_schema()
    jobs = EvaluationSpec.model_json_schema()
    definitions = jobs.pop("$defs", {})
    fields = jobs["properties"]
    fields["kind"] = {"enum": ["evaluation", "capture", "extract"], "type": "string"}
    for field in ("dataset", "fewshot_dataset"):
        fields[field] = {
            "anyOf": [{"type": "string", "description": "File beside the experiment."}, fields[field]]
        }
    for name, definition in definitions.items():
        found["$defs"].setdefault(name, definition)
    found["$defs"]["JobFields"] = {"type": "object", "properties": fields}
    stage = found["$defs"]["EvaluateStage"]["properties"]
    stage["base"] |= {"$ref": "#/$defs/JobFields"}
    stage["jobs"]["patternProperties"] = {
        pattern: {"anyOf": [{"$ref": "#/$defs/JobFields"}, {"type": "null"}]}
        for pattern in stage["jobs"].get("patternProperties", {".*": None})
    }
    stage["jobs"].pop("additionalProperties", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


def check_job(body: Mapping[str, Any]) -> None:
    """Check a job's body; its model may be missing and its datasets may be files. Raises ValidationError."""
    unsent = {"file_id": "file_" + "0" * 32}
    files = {field: unsent for field in ("dataset", "fewshot_dataset") if isinstance(body.get(field), str)}
    job_spec_adapter.validate_python({"model": "any"} | dict(body) | files)


def check_analysis(job: AnalysisJob, count: int) -> None:
    """Check an analysis of `count` jobs, which do not exist yet. Raises ValidationError."""
    submitted_spec_adapter.validate_python(job.body([f"job_{number:032x}" for number in range(count)]))
