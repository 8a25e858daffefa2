"""`client.analysis`: outlier features, probes, comparisons and the lens of stored sessions, as jobs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from tempfile import TemporaryFile
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from actograph.client.errors import AnalysisFailed
from actograph.client.jobs import JobHandle, Jobs
from actograph.client.keywords import listed, require_known
from actograph.client.sessions import SessionHandle
from actograph.client.transport import LONG_SECONDS, APIResource, Transport, parse, path_of
from actograph.contract.analyses import (
    ANALYSIS_KINDS,
    RESULT_FILE,
    RESULTS,
    AnalysisResult,
    CompareSpec,
    ComparisonResult,
    LensResult,
    LensSpec,
    OutliersResult,
    OutliersSpec,
    ProbeSpec,
    ProbesResult,
)
from actograph.contract.errors import package
from actograph.contract.job_options import sessions_of
from actograph.progress import meter

R = TypeVar("R", bound=AnalysisResult)
#: a job or a session, by id or handle
One = str | JobHandle | SessionHandle
#: jobs or sessions, or the fields of a session query
Query = One | Iterable[One] | Mapping[str, Any]
_SPECS = {"outliers": OutliersSpec, "probe": ProbeSpec, "compare": CompareSpec, "lens": LensSpec}
#: kind -> table that `frame` shows by default
_TABLES = {"outliers": "outlier_features", "probe": "probes", "compare": "hooks", "lens": "lens"}


@dataclass(frozen=True, kw_only=True)
class FinishedAnalysis(Generic[R]):
    """A finished analysis: its job, the session with its files, and the content of `result.json`."""

    job: JobHandle
    session: SessionHandle
    result: R
    analysis: "Analysis" = field(repr=False)

    @override
    def __str__(self) -> str:
        return str(self.result)

    def frame(self, table: str | None = None) -> Any:
        """Return a CSV file as a `pandas.DataFrame`.

        Args:
            table: name of the file without `.csv`, such as `massive_activations` or `hooks`; by default the
                main one of the kind.

        Raises:
            PackageMissing: pandas is not installed.
            ApiError: 404 if the analysis has no such table.
        """
        pandas = package("pandas", "a data frame")
        data = self.file(f"{table or _TABLES[self.job.kind]}.csv")
        return pandas.read_csv(BytesIO(data)) if data.strip() else pandas.DataFrame()

    def file(self, name: str) -> bytes:
        """Return a file such as `probes.png`. Raises ApiError with status 404 if there is none."""
        return self.analysis.read(self.session, name)

    def directions(self) -> dict[str, NDArray[np.float64]]:
        """Return the direction of each hook, [width]: weights of a probe, or a mean difference."""
        data = self.file("directions.npz")
        with np.load(BytesIO(data), allow_pickle=False) as arrays:
            return dict(arrays)


class Analysis(APIResource, path="/v1/jobs"):
    """Analyse stored sessions as jobs, and read the results; see docs/guides/analysis.md.

    Every call submits a job and waits for its end. `client.submit` takes the same specs without waiting.

    Args (every call):
        sessions: jobs or sessions, by id or handle, or a mapping with `jobs` or `ids`, and filters
            (`condition`, `tag`, `correct`, `limit`).
        hooks: a stored hook or several, or points such as `resid_post` for all of its layers; empty: all.
        progress: show a bar on stderr, or lines if stderr is no terminal.
        options: further fields of the job's spec.

    Raises (every call):
        AnalysisFailed: the job failed or was cancelled.
    """

    def __init__(self, transport: Transport, jobs: Jobs) -> None:
        super().__init__(transport)
        self._jobs = jobs

    def outliers(
        self, sessions: Query, *, hooks: str | Iterable[str] = (), progress: bool = False, **options: Any
    ) -> FinishedAnalysis[OutliersResult]:
        """Find outlier features and massive activations.

        Options: `positions`, `threshold`, `layer_share`, `position_share`, `position_reading`, `together`,
        `massive_magnitude`, `massive_ratio`.
        """
        return self._run("outliers", sessions, hooks, progress, options)

    def probe(
        self, sessions: Query, *, hooks: str | Iterable[str] = (), progress: bool = False, **options: Any
    ) -> FinishedAnalysis[ProbesResult]:
        """Fit and score a linear probe on each hook.

        Options: `positions`, `reduce`, `label`, `method`, `groups`, `folds`, `c`, `seed`, `resamples`,
        `level`, `shuffles`, `max_bytes`, `save_as`.
        """
        return self._run("probe", sessions, hooks, progress, options)

    def compare(
        self,
        sessions: Query,
        other: Query | None = None,
        *,
        hooks: str | Iterable[str] = (),
        progress: bool = False,
        **options: Any,
    ) -> FinishedAnalysis[ComparisonResult]:
        """Compare two sets of sessions; differences are `other` minus `sessions`.

        With a `label` of two values instead of `other`, the larger value is compared with the smaller.
        `paired=False` compares two independent sets, such as two sets of prompts.

        Options: `label`, `paired`, `groups`, `positions`, `reduce`, `permutations`, `top`, `seed`,
        `max_bytes`, `save_as`.
        """
        return self._run(
            "compare",
            sessions,
            hooks,
            progress,
            options | ({} if other is None else {"other": query_of(other)}),
        )

    def lens(
        self, sessions: Query, *, hooks: str | Iterable[str] = (), progress: bool = False, **options: Any
    ) -> FinishedAnalysis[LensResult]:
        """Read residual rows as next tokens, and attribute a token's logit to components.

        `result.grid` has the tokens on top, by layer and position, of the first session; `print` shows it.

        Options: `positions`, `top`, `listed`, `token`, `against`.
        """
        return self._run("lens", sessions, hooks, progress, options)

    def result(self, job_id: str) -> FinishedAnalysis[Any]:
        """Return the results of a finished analysis. Raises AnalysisFailed if it has none."""
        job = self._jobs.get(job_id)
        session = next(job.sessions(), None)
        if job.kind not in ANALYSIS_KINDS or session is None:
            reason = f": {job.error.message}" if job.error else ""
            raise AnalysisFailed(f"job {job.id} of kind {job.kind} is {job.status}, without results{reason}")
        result = parse(RESULTS[job.kind], self.read(session, RESULT_FILE))
        return FinishedAnalysis(job=job, session=session, result=result, analysis=self)

    def read(self, session: SessionHandle, name: str) -> bytes:
        """Return the bytes of a file of an analysis. Raises ApiError with status 404 if there is none."""
        path = path_of("/v1/activations/sessions", session.id, "files", name)
        with TemporaryFile() as file:
            self._transport.download(path, file, read_timeout=LONG_SECONDS)
            file.seek(0)
            return file.read()

    def _run(
        self,
        kind: str,
        sessions: Query,
        hooks: str | Iterable[str],
        progress: bool,
        options: Mapping[str, Any],
    ) -> FinishedAnalysis[Any]:
        require_known(getattr(self, kind), options, _SPECS[kind], fixed=["kind", "sessions", "hooks"])
        body = {"kind": kind, "sessions": query_of(sessions), "hooks": listed(hooks), **options}
        return self.follow(self._jobs.submit(body).id, progress=progress)

    def follow(self, job_id: str, *, progress: bool = True) -> FinishedAnalysis[Any]:
        """Wait for the end of an analysis and return its results."""
        with meter("parts", show=progress) as update:
            for event in self._jobs.events(job_id):
                if event.event == "analysis.progress":
                    update("reading", event.data["done"], event.data["total"])
        return self.result(job_id)


def query_of(given: Query) -> dict[str, Any]:
    """Return the fields of the query that jobs, sessions or a mapping stand for."""
    if isinstance(given, Mapping):
        return {name: _ids(value) if name in ("jobs", "ids") else value for name, value in given.items()}
    return sessions_of(_ids(given))


def _ids(given: One | Iterable[One]) -> list[str]:
    found = [given] if isinstance(given, str | JobHandle | SessionHandle) else list(given)
    return [one if isinstance(one, str) else one.id for one in found]
