"""The calls about what a job gave: samples, scores, comparisons, the whole as a folder."""

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from actograph.client.aio import results_pull
from actograph.client.aio.calls import Calls
from actograph.client.answers import path_of, read
from actograph.client.queries import PAGE_SIZE
from actograph.client.results_folder import Activations, OnProgress, PulledResults
from actograph.client.transport import Params
from actograph.contract import resources
from actograph.contract.comparison import ActivationComparison, ActivationComparisonRequest, JobComparison

#: a job may have very many samples
RESCORE_SECONDS = 900.0


class ResultCalls(Calls):
    """Samples, scores and comparisons of a job."""

    def samples(
        self,
        job_id: str,
        *,
        status: str | None = None,
        condition: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncIterator[resources.Sample]:
        """Every sample of a job that fits, in the order of the dataset."""
        params = {"status": status, "condition": condition, "order": "asc", "limit": page_size}
        return self._items(path_of("/v1/jobs", job_id, "samples"), resources.Sample, params)

    async def results(self, job_id: str) -> resources.JobResults:
        """Scores per condition, of what has finished so far."""
        path = path_of("/v1/jobs", job_id, "results")
        return read(resources.JobResults, await self._transport.request("GET", path))

    async def rescore(
        self, job_id: str, scorers: Sequence[str | Mapping[str, Any] | BaseModel]
    ) -> resources.JobResults:
        """Score an ended evaluation's completions anew; scores of other scorers are kept.

        Args:
            scorers: names, or objects with a name and parameters; the first gives the verdict.

        Raises:
            ApiError: 409 where the job has not ended.
        """
        given = [one.model_dump(mode="json") if isinstance(one, BaseModel) else one for one in scorers]
        answer = await self._transport.request(
            "POST", path_of("/v1/jobs", job_id, "rescore"), json={"scorers": given}, timeout=RESCORE_SECONDS
        )
        return read(resources.JobResults, answer)

    async def comparison(
        self,
        job_id: str,
        *,
        baseline: str | None = None,
        level: float | None = None,
        mixed_identities: bool = False,
    ) -> JobComparison:
        """Every condition of a job against a baseline (its first condition where not named).

        Args:
            mixed_identities: compare although sessions were recorded with different models.
        """
        params: Params = {
            "baseline": baseline, "level": level, "mixed_identities": mixed_identities or None,
        }  # fmt: skip
        answer = await self._transport.request(
            "GET", path_of("/v1/jobs", job_id, "comparison"), params=params
        )
        return read(JobComparison, answer)

    async def compare_activations(
        self,
        job_id: str,
        wanted: ActivationComparisonRequest | Mapping[str, Any],
        *,
        timeout: float = 3600.0,
    ) -> ActivationComparison:
        """Pooled activations of a condition minus the baseline's; the service reads every session for it.

        Args:
            wanted: the request, or its fields.
            timeout: seconds to wait for the answer.
        """
        path = path_of("/v1/jobs", job_id, "comparison", "activations")
        body = wanted.model_dump(mode="json") if isinstance(wanted, BaseModel) else dict(wanted)
        answer = await self._transport.request("POST", path, json=body, timeout=timeout)
        return read(ActivationComparison, answer)

    async def pull_results(
        self,
        job_id: str,
        folder: str | Path,
        *,
        activations: Activations = "meta",
        on_progress: OnProgress | None = None,
        parallel: int = 4,
        mixed_identities: bool = False,
    ) -> PulledResults:
        """Fetch the results folder of a job; docs/results.md says what is in it.

        What broke off is taken up again, within this call and by the next one. A folder that holds
        results of this job is brought up to date.

        Args:
            activations: `none`, `meta` (shapes and sizes), `sampled` (the first 50 features of every
                row), or `all`: the session folders too, checked by sha256.
            on_progress: called with what is fetched (`samples` or `sessions`), how many are there, and
                of how many.
            parallel: sessions that are fetched at once.
            mixed_identities: fetch a job whose sessions were recorded with different models too.

        Raises:
            InvalidRequest: the folder holds something else.
            DownloadDamaged: what came is no results folder, or a file has another sha256.
        """
        return await results_pull.pull(
            self._transport,
            job_id,
            Path(folder),
            activations=activations,
            on_progress=on_progress or (lambda _what, _done, _total: None),
            parallel=parallel,
            mixed_identities=mixed_identities,
        )
