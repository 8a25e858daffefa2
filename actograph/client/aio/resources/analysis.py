"""`client.analysis`: analyses of stored sessions, run by the service's analysis worker."""

from typing import Any

from actograph.client.aio.resources.jobs import Jobs
from actograph.client.analyses.hooks import HookReport
from actograph.client.analyses.lens import LensReport
from actograph.client.analyses.outliers import OutlierReport
from actograph.contract import resources
from actograph.contract.errors import ActographError
from actograph.contract.resources import JobStatus


class Analysis:
    """Submit analysis jobs, wait for them, and return their results."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def outliers(
        self,
        *jobs: str | resources.Job,
        progress: bool = False,
        timeout: float | None = None,
        **fields: Any,
    ) -> OutlierReport:
        """Find outlier features and massive activations in the sessions of jobs.

        Args:
            jobs: jobs or their ids; several are reported side by side.
            progress: show the job's progress on stderr.
            timeout: seconds to wait; None waits for ever.
            fields: other fields of the job's spec, such as `positions="mean"` or `points=["attn_in"]`.

        Raises:
            ActographError: the job failed or was cancelled.
            WaitTimeout: it has not ended in time; it goes on.
        """
        done = await self._run("outliers", jobs, fields, progress=progress, timeout=timeout)
        return OutlierReport.of(done.job_id, done.analysis or {})

    async def probe(
        self,
        *jobs: str | resources.Job,
        progress: bool = False,
        timeout: float | None = None,
        **fields: Any,
    ) -> HookReport:
        """Fit a linear probe to each hook of the sessions of jobs.

        Args:
            jobs: jobs or their ids; their sessions are one set.
            progress: show the job's progress on stderr.
            timeout: seconds to wait; None waits for ever.
            fields: other fields of the job's spec, such as `label="condition"` or `layers=[8, 12]`.

        Raises:
            ActographError: the job failed or was cancelled.
            WaitTimeout: it has not ended in time; it goes on.
        """
        done = await self._run("probe", jobs, fields, progress=progress, timeout=timeout)
        return HookReport.of(done.job_id, done.analysis or {})

    async def compare(
        self,
        *jobs: str | resources.Job,
        progress: bool = False,
        timeout: float | None = None,
        **fields: Any,
    ) -> HookReport:
        """Compare the activations of two jobs, or of two conditions of one, problem by problem.

        Args:
            jobs: the baseline and the job beside it, or one job with `sessions={"conditions": [...]}`.
            progress: show the job's progress on stderr.
            timeout: seconds to wait; None waits for ever.
            fields: other fields of the job's spec, such as `rows="last_prompt"`.

        Raises:
            ActographError: the job failed or was cancelled.
            WaitTimeout: it has not ended in time; it goes on.
        """
        done = await self._run("compare", jobs, fields, progress=progress, timeout=timeout)
        return HookReport.of(done.job_id, done.analysis or {})

    async def lens(
        self,
        *jobs: str | resources.Job,
        progress: bool = False,
        timeout: float | None = None,
        **fields: Any,
    ) -> LensReport:
        """Read the stored residual rows of jobs as next tokens: the logit lens.

        Args:
            jobs: jobs or their ids; several are reported side by side.
            progress: show the job's progress on stderr.
            timeout: seconds to wait; None waits for ever.
            fields: other fields of the job's spec, such as `rows="last_prompt"` or `token="next"`.

        Raises:
            ActographError: the job failed or was cancelled.
            WaitTimeout: it has not ended in time; it goes on.
        """
        done = await self._run("lens", jobs, fields, progress=progress, timeout=timeout)
        return LensReport.of(done.job_id, done.analysis or {})

    async def _run(
        self,
        kind: str,
        jobs: tuple[str | resources.Job, ...],
        fields: dict[str, Any],
        *,
        progress: bool,
        timeout: float | None,
    ) -> resources.JobResults:
        """Run a job of this kind to its end."""
        ids = [one if isinstance(one, str) else one.id for one in jobs]
        job = await self._jobs.submit({"kind": kind, "jobs": ids, **fields})
        job = await self._jobs.wait(job, progress=progress, timeout=timeout, check=False)
        if job.status is not JobStatus.COMPLETED:
            reason = job.error.message if job.error else str(job.status)
            raise ActographError(f"analysis {job.id} has no result: {reason}")
        return await self._jobs.results(job.id)
