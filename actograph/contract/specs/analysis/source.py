"""The base of analysis jobs: the stored sessions that they read."""

from collections.abc import Collection, Sequence
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from actograph.contract import hooks
from actograph.contract.base import Name, Spec, Tag
from actograph.contract.errors import InvalidRequest
from actograph.contract.row_selection import Positions
from actograph.contract.specs.capture import Layers
from actograph.contract.specs.job_base import QueuedSpec

#: queue of the analysis workers; it stands in the place of the model
ANALYSIS_QUEUE = "actograph:analysis"
JobId = Annotated[str, Field(pattern=r"^job_[0-9a-f]{32}$")]


def distinct(value: list[str]) -> list[str]:
    """Raise ValueError if an id occurs twice."""
    if len(set(value)) != len(value):
        raise ValueError("the ids must differ")
    return value


class SessionQuery(Spec):
    """Conditions on the sessions of the jobs; null means any."""

    conditions: list[Name] | None = Field(
        None, min_length=1, max_length=64, description="Conditions of the jobs."
    )
    tag: Tag | None = Field(None, description="A tag of the session.")
    correct: bool | None = Field(None, description="Verdict of the first scorer.")
    limit: int | None = Field(
        None, ge=1, description="Maximum number of sessions of each job; null takes all."
    )


class AnalysisSpec(QueuedSpec):
    """Fields of all analysis jobs. They need no model, and read the sessions of other jobs."""

    #: points that are read if the spec names no point and no hook
    default_points: ClassVar[tuple[str, ...]] = ("resid_post",)

    jobs: Annotated[list[JobId], AfterValidator(distinct)] = Field(
        min_length=1, max_length=64, description="Jobs whose sessions are read."
    )
    sessions: SessionQuery = Field(default_factory=SessionQuery, description="Which of their sessions.")
    points: list[hooks.PointName] = Field(
        default_factory=list, max_length=len(hooks.POINTS), description="Points to read; [] takes a default."
    )
    layers: Layers = Field("all", description="Layers of `points`: numbers, `all`, or `start:stop:step`.")
    hooks: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(
        default_factory=list, max_length=10_000, description="Further hooks, by name."
    )
    rows: Positions = Field("all", description="Tokens whose rows are read, as `positions` of a capture.")

    @property
    def read_jobs(self) -> list[tuple[str, JobId]]:
        """Every job that is read, with its place in the spec."""
        return [(f"jobs.{place}", job_id) for place, job_id in enumerate(self.jobs)]

    @property
    def model(self) -> str:
        """The queue of the analysis workers."""
        return ANALYSIS_QUEUE


def selected_hooks(spec: AnalysisSpec, captured: Sequence[str]) -> list[str]:
    """Hooks of one job that an analysis reads, in the order of capture.

    Args:
        captured: canonical names of the job's hooks.

    Raises:
        InvalidRequest: a named hook was not captured, or no hook is left.
    """
    named = [hooks.canonical(name) or name for name in spec.hooks]
    for name in named:
        if name not in captured:
            raise InvalidRequest(f"no hook {name}; captured are {_some(captured)}", param="hooks")
    points: Collection[str] = spec.points or (() if named else spec.default_points)
    layers = _layers(spec.layers)
    chosen = [
        name
        for name in captured
        if name in named
        or (
            hooks.point_of(name) in points
            and (layers is None or (layer := hooks.layer_of(name)) is None or layer in layers)
        )
    ]
    if not chosen:
        raise InvalidRequest(
            f"the job has no hook of points {', '.join(points)}; captured are {_some(captured)}",
            param="points",
        )
    return chosen


def _layers(layers: Layers) -> Collection[int] | None:
    """Chosen layers; None for all."""
    if layers == "all":
        return None
    if isinstance(layers, list):
        return layers
    start, stop, step = ([int(part) if part else None for part in layers.split(":")] + [None])[:3]
    return range(start or 0, 1_000_000 if stop is None else stop, step or 1)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (" ..." if len(names) > 8 else "") if names else "none"
