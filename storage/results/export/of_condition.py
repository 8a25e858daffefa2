"""Data of one condition for the files of evaluation frameworks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from actograph.contract.job_specs import EvaluationSpec
from actograph.contract.resources import ConditionResults, Job
from actograph.contract.specs import Condition, SamplingSpec
from actograph.contract.tasks import STOP_STRINGS, TaskSpec, task_name

#: characters that no part of a path may have
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\-]+")


@dataclass(frozen=True, kw_only=True)
class ConditionRun:
    """One condition of a job. lm-eval and Inspect see it as an evaluation of its own."""

    job: Job
    spec: EvaluationSpec
    condition: Condition
    results: ConditionResults
    #: True if the job has other conditions
    is_one_of_several: bool

    @property
    def task(self) -> str:
        return task_name(self.job.spec.get("task")) or self.job.kind

    @property
    def sampling(self) -> SamplingSpec:
        changes = self.condition.sampling
        return self.spec.sampling if changes is None else changes.applied(self.spec.sampling)

    @property
    def stop(self) -> list[str]:
        """The job's stop strings and the task's."""
        own = self.spec.task
        of_task = own.stop if isinstance(own, TaskSpec) else STOP_STRINGS.get(str(own), ())
        return list(dict.fromkeys([*self.spec.sampling.stop, *of_task]))


@dataclass(frozen=True)
class Origin:
    """Versions of model, template and libraries, from the sessions; empty without sessions."""

    revision: str | None = None
    template_sha256: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


def runs(job: Job, results: Mapping[str, ConditionResults]) -> dict[str, ConditionRun]:
    """The conditions of an evaluation by name; empty for other kinds of job."""
    if job.kind != "evaluation":
        return {}
    spec = EvaluationSpec.model_validate(job.spec)
    return {
        condition.name: ConditionRun(
            job=job,
            spec=spec,
            condition=condition,
            results=results[condition.name],
            is_one_of_several=len(spec.conditions) > 1,
        )
        for condition in spec.conditions
    }


def dataset_name(spec: EvaluationSpec) -> str:
    """Source of the problems, in words."""
    fields: dict[str, Any] = spec.dataset.model_dump()
    return str(fields.get("hub") or fields.get("path") or fields.get("file_id"))


def safe_part(text: str, otherwise: str) -> str:
    """`text` as one part of a path.

    Replaces the characters that lm-eval replaces (`sanitize_model_name`), and all that a file system or a
    shell could misread. Removes leading dots.
    """
    return _UNSAFE.sub("__", text).lstrip(".")[:128] or otherwise
