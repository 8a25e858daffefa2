"""Jobs and sessions that know their client, so that what is asked next can be asked of them."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray
from pydantic import PrivateAttr

from actograph.client.aio.row_tensor import RowSource, RowTensor
from actograph.client.chosen_rows import RowChoice
from actograph.client.hook_names import absent, stored_name
from actograph.client.matrix import Matrix
from actograph.client.queries import SessionChoice
from actograph.client.results_folder import Activations, PulledResults
from actograph.client.session_files import plain_name
from actograph.contract import resources
from actograph.contract.comparison import ActivationComparison, JobComparison
from actograph.contract.row_selection import Reduce
from actograph.tensor_files import raw_array

if TYPE_CHECKING:
    from actograph.client.aio.client import AsyncClient


class SessionHandle(resources.Session):
    """A session as it was when it was asked for; its tensors are read when they are indexed."""

    _client: "AsyncClient" = PrivateAttr()
    _rows: RowSource = PrivateAttr()

    def __eq__(self, other: Any) -> bool:
        """Whether the service said the same of both; who asked does not matter."""
        return isinstance(other, resources.Session) and bool(self.__dict__ == other.__dict__)

    def __hash__(self) -> int:
        return hash(self.id)

    def __getitem__(self, hook: str) -> RowTensor:
        """The tensor of a hook point or an alias of it.

        Raises:
            NotFound: the session has no such tensor.
        """
        name = stored_name(hook, self.hooks)
        if name is None:
            raise absent(hook, self.hooks)
        return RowTensor(name, self.hooks[name], self._rows)

    def __contains__(self, hook: str) -> bool:
        return stored_name(hook, self.hooks) is not None

    async def token_ids(self) -> NDArray[np.int64]:
        """`[P + G]`: the ids of prompt and generation."""
        return await self._numbers("token_ids", 0, self.prompt_tokens + self.generated_tokens)

    async def tokens_of(self, hook: str) -> NDArray[np.int64]:
        """The token of every row of a tensor, ascending; of a summary, all that it sums up."""
        info = self[hook].info
        count = info.shape[0] if info.over is None else info.over
        if info.position_offset is None:
            return np.arange(info.first_row, info.first_row + count)
        return await self._numbers("row_positions", info.position_offset, info.position_offset + count)

    async def download(self, folder: str | Path) -> Path:
        """Fetch every file to `<folder>/<id>`, resumed and checked; that folder."""
        target = Path(folder) / plain_name(self.id)
        target.mkdir(parents=True, exist_ok=True)
        for file in self.files:
            await self._client.download(self.id, file, target / plain_name(file.name))
        return target

    async def update(self, **change: Any) -> "SessionHandle":
        """Change `expires_at`, `pinned` or `tags`; the session as it is then."""
        return await self._client.update_session(self.id, **change)

    async def delete(self) -> resources.Deleted:
        """Remove it with its files."""
        return await self._client.delete_session(self.id)

    async def _numbers(self, name: str, start: int, stop: int) -> NDArray[np.int64]:
        data = await self._rows.read(name, start, stop, 8)
        return raw_array("I64", (stop - start,), data)


class JobHandle(resources.Job):
    """A job as it was when it was asked for; `refresh` gives it as it is now."""

    _client: "AsyncClient" = PrivateAttr()

    def __eq__(self, other: Any) -> bool:
        """Whether the service said the same of both; who asked does not matter."""
        return isinstance(other, resources.Job) and bool(self.__dict__ == other.__dict__)

    def __hash__(self) -> int:
        return hash(self.id)

    async def refresh(self) -> "JobHandle":
        """The job as it stands now."""
        return await self._client.job(self.id)

    async def wait(self, *, progress: bool = False, timeout: float | None = None) -> "JobHandle":
        """See `Client.wait`."""
        return await self._client.wait(self, progress=progress, timeout=timeout)

    def events(self, after: int = 0) -> AsyncIterator[resources.Event]:
        """See `Client.events`."""
        return self._client.events(self.id, after)

    async def cancel(self) -> "JobHandle":
        """Ask for its end; samples that finished are kept."""
        return await self._client.cancel(self.id)

    async def retry(self) -> "JobHandle":
        """See `Client.retry`."""
        return await self._client.retry(self.id)

    def samples(
        self, *, status: str | None = None, condition: str | None = None
    ) -> AsyncIterator[resources.Sample]:
        """Its samples that fit, in the order of the dataset."""
        return self._client.samples(self.id, status=status, condition=condition)

    def sessions(self, **wanted: Unpack[SessionChoice]) -> AsyncIterator[SessionHandle]:
        """Its sessions that fit the filters, newest first."""
        return self._client.sessions(job=self, **wanted)

    async def results(self) -> resources.JobResults:
        """Scores per condition, of what has finished so far."""
        return await self._client.results(self.id)

    async def comparison(
        self, *, baseline: str | None = None, level: float | None = None, mixed_identities: bool = False
    ) -> JobComparison:
        """Every condition against a baseline (the first condition where not named), problem by problem."""
        return await self._client.comparison(
            self.id, baseline=baseline, level=level, mixed_identities=mixed_identities
        )

    async def compare_activations(
        self,
        condition: str,
        *,
        rows: str = "all",
        hooks: Sequence[str] = (),
        baseline: str | None = None,
        limit: int | None = None,
        store_as: str | None = None,
        mixed_identities: bool = False,
    ) -> ActivationComparison:
        """Mean activations of a condition minus the baseline's, hook by hook; see docs/comparisons.md.

        Args:
            rows: tokens that are averaged: `all`, `last_prompt`, `generated`, a segment, ...
            hooks: none: every hook that was captured.
            limit: most pairs to read.
            store_as: store each hook's mean difference as a vector of this name, for interventions.
            mixed_identities: compare sessions that were recorded with different models too.
        """
        wanted = {
            "condition": condition, "rows": rows, "hooks": list(hooks), "baseline": baseline, "limit": limit,
            "store_as": store_as, "mixed_identities": mixed_identities,
        }  # fmt: skip
        return await self._client.compare_activations(self.id, wanted)

    async def pull_results(
        self,
        folder: str | Path,
        *,
        activations: Activations = "meta",
        parallel: int = 4,
        mixed_identities: bool = False,
    ) -> PulledResults:
        """Its results as a folder of files; see `Client.pull_results`."""
        return await self._client.pull_results(
            self.id, folder, activations=activations, parallel=parallel, mixed_identities=mixed_identities
        )

    async def delete(self, *, include_pinned: bool = False) -> resources.Deleted:
        """Remove it, once it has ended, with its samples and sessions."""
        return await self._client.delete_job(self.id, include_pinned=include_pinned)

    async def matrix(
        self,
        hook: str,
        *,
        rows: RowChoice = "last_prompt",
        reduce: Reduce = "none",
        label: str = "correct",
        limit: int | None = None,
        parallel: int = 8,
        max_bytes: int = 4 << 30,
        progress: bool = False,
        mixed_identities: bool = False,
        **wanted: Unpack[SessionChoice],
    ) -> Matrix:
        """Rows of one hook over its sessions; see `Client.matrix`."""
        return await self._client.matrix(
            self, hook, rows=rows, reduce=reduce, label=label, limit=limit, parallel=parallel,
            max_bytes=max_bytes, progress=progress, mixed_identities=mixed_identities, **wanted,
        )  # fmt: skip

    async def frame(self) -> Any:
        """Its samples as a `pandas.DataFrame`; see `Client.frame`."""
        return await self._client.frame(self)
