"""The result of an outlier job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from actograph.client.optional import package


@dataclass(frozen=True)
class JobOutliers:
    """Outliers of one job.

    Attributes:
        outlier_features: `points`, `feature`, `layers`, `layer_share`, `position_share`, `largest` of each.
        massive_activations: `hook`, `session_id`, `position`, `feature`, `value`, `ratio` of each.
        hooks: hook -> `mean`, `variance`, `kurtosis`, `largest`, `median_magnitude`.
        experts: layer -> `load`, `imbalance`, `router_entropy`, `pairs`, `outliers`.
    """

    job_id: str
    model: str
    sessions: int
    outlier_features: Sequence[Mapping[str, Any]]
    massive_activations: Sequence[Mapping[str, Any]]
    hooks: Mapping[str, Mapping[str, Any]]
    experts: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class OutlierReport:
    """Outliers of several jobs side by side.

    Attributes:
        job_id: the analysis job.
        summary: its result as JSON.
        jobs: the analysed jobs, in the order of the call.
    """

    job_id: str
    summary: Mapping[str, Any]
    jobs: Sequence[JobOutliers]

    @classmethod
    def of(cls, job_id: str, summary: Mapping[str, Any]) -> "OutlierReport":
        """The report of a job's result."""
        names = JobOutliers.__dataclass_fields__
        return cls(
            job_id, summary, [JobOutliers(**{name: one[name] for name in names}) for one in summary["jobs"]]
        )

    def frame(self) -> Any:
        """Return a `pandas.DataFrame`, one line per outlier feature of each job.

        Raises:
            PackageMissing: pandas is not installed.
        """
        pandas = package("pandas", "a data frame")
        return pandas.DataFrame(
            [
                {"job_id": one.job_id, "model": one.model, **feature}
                for one in self.jobs
                for feature in one.outlier_features
            ]
        )
