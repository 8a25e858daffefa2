"""The result of a lens job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from actograph.client.optional import package


@dataclass(frozen=True)
class JobLens:
    """The logit lens of one job.

    Attributes:
        weights_sha256: digest of the weight files that the rows were read with.
        hooks: hook -> `rows`, `next_rows`, `next_log_probability` (nats), `next_is_top`, `agreement`.
        attribution: `token`, `against`, `rows`, `components`; None if the spec has no `token`.
    """

    job_id: str
    model: str
    weights_sha256: str
    sessions: int
    hooks: Mapping[str, Mapping[str, Any]]
    attribution: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class LensReport:
    """The logit lens of several jobs side by side.

    Attributes:
        job_id: the analysis job.
        summary: its result as JSON.
        jobs: the analysed jobs, in the order of the call.
    """

    job_id: str
    summary: Mapping[str, Any]
    jobs: Sequence[JobLens]

    @classmethod
    def of(cls, job_id: str, summary: Mapping[str, Any]) -> "LensReport":
        """The report of a job's result."""
        names = JobLens.__dataclass_fields__
        found = [JobLens(**{name: one.get(name) for name in names}) for one in summary["jobs"]]
        return cls(job_id, summary, found)

    def frame(self) -> Any:
        """Return a `pandas.DataFrame`, one line per job and hook.

        Raises:
            PackageMissing: pandas is not installed.
        """
        pandas = package("pandas", "a data frame")
        return pandas.DataFrame(
            [
                {"job_id": one.job_id, "model": one.model, "hook": hook, **numbers}
                for one in self.jobs
                for hook, numbers in one.hooks.items()
            ]
        )
