"""The result of a job with numbers for each hook: a probe or a comparison."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from actograph.client.optional import package


@dataclass(frozen=True)
class HookReport:
    """Numbers for each hook.

    Attributes:
        job_id: the analysis job.
        summary: its result as JSON.
        hooks: hook -> its numbers, in the order of capture. See docs/analysis for their names.
        vectors: hook -> id of the stored vector; empty without `store_as`.
    """

    job_id: str
    summary: Mapping[str, Any]
    hooks: Mapping[str, Mapping[str, Any]]
    vectors: Mapping[str, str]

    @classmethod
    def of(cls, job_id: str, summary: Mapping[str, Any]) -> "HookReport":
        """The report of a job's result."""
        return cls(job_id, summary, summary["hooks"], summary.get("vectors") or {})

    def frame(self) -> Any:
        """Return a `pandas.DataFrame`, one line per hook; nested numbers are left out.

        Raises:
            PackageMissing: pandas is not installed.
        """
        pandas = package("pandas", "a data frame")
        return pandas.DataFrame(
            [
                {"hook": hook} | {key: value for key, value in one.items() if _is_plain(value)}
                for hook, one in self.hooks.items()
            ]
        )


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, int | float | str)
