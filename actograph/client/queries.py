"""Options and filters of the client's calls."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict

from actograph.client.matrix.chosen_rows import GivenPositions
from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import Job
from actograph.contract.row_selection import Reduce

Order = Literal["asc", "desc"]
Activations = Literal["none", "meta", "sampled", "all"]
#: called with `samples` or `sessions`, the number fetched, and the total
OnProgress = Callable[[str, int, int], None]

PAGE_SIZE = 100
#: timeout of requests that read or change many sessions
LONG_SECONDS = 3600.0


class SessionChoice(TypedDict, total=False):
    """Filters of a job's sessions. None means no filter. Times are Unix seconds."""

    id_prefix: str | None
    model: str | None
    condition: str | None
    sample_index: int | None
    correct: bool | None
    tag: str | None
    owner: str | None
    pinned: bool | None
    created_after: float | None
    created_before: float | None
    expires_before: float | None


class SessionQuery(SessionChoice, total=False):
    """Filters of sessions. `job` is a job or its id; `job_id` is an id."""

    job: Job | str | None
    job_id: str | None


class MatrixOptions(SessionChoice, total=False):
    """Options of `matrix`, and filters of its sessions."""

    #: as in a capture spec, or the number of one token; default `last_prompt`
    positions: GivenPositions
    #: `mean`, `max` or `last` reduces each session's rows to one; default `none`
    reduce: Reduce
    #: `correct` (1 or 0, the default), or a metric key of the samples' scores (`exact_match,strict-match`)
    label: str
    #: maximum number of sessions, oldest first
    limit: int | None
    #: sessions read at once; default 8
    parallel: int
    #: maximum size of the features, default 4 GiB; more is an error
    max_bytes: int
    #: show a bar with rate and ETA on stderr, or lines if stderr is no terminal
    progress: bool


class ComparisonOptions(TypedDict, total=False):
    """Options of `compare_activations`."""

    #: tokens to average, as in a capture spec; default `all`
    positions: GivenPositions
    #: by default every captured hook
    hooks: Sequence[str]
    #: by default the first condition
    baseline: str | None
    #: maximum number of pairs
    limit: int | None
    #: store each hook's mean difference as a vector of this name
    store_as: str | None


class PullOptions(TypedDict, total=False):
    """Options of `pull_results`."""

    #: `none`, `meta` (default: shapes and sizes), `sampled` (the first 50 features of every row), or `all`:
    #: every session folder too, verified by sha256
    activations: Activations
    on_progress: OnProgress | None
    #: sessions fetched at once; default 4
    parallel: int


def query_params(filters: SessionQuery) -> dict[str, Any]:
    """Query parameters of the filters that are set.

    Raises:
        InvalidRequest: `job` and `job_id` differ.
    """
    params: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
    job = params.pop("job", None)
    if job is not None:
        identifier = job if isinstance(job, str) else job.id
        if params.setdefault("job_id", identifier) != identifier:
            raise InvalidRequest("job and job_id name different jobs")
    return params
