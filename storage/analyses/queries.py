"""The stored sessions that an analysis reads, by the index."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.analysis.comparison import require_common, require_sets
from actograph.analysis.probe_labels import predicts, require_groups
from actograph.contract import hooks
from actograph.contract.analyses import CompareSpec, ProbeSpec, SessionQuery
from actograph.contract.errors import InvalidRequest, MixedIdentities
from actograph.contract.models import ModelIdentity, short
from actograph.contract.readouts import is_readout
from actograph.contract.resources import TensorInfo
from actograph.contract.saes import is_latents
from actograph.dtypes import DTYPES, row_bytes
from actograph.latents import with_latents
from actograph.tensor_files import Array
from storage.index.ids import slices
from storage.jobs import jobs
from storage.results import labels, matrix
from storage.results.labels import Label
from storage.results.matrix import SessionSource
from storage.sessions import sessions
from storage.sessions.filter import SampleFilter, SessionFilter
from storage.tables.models import JobRow, SampleRow, SessionRow

OUTLIERS, LENS = "outliers", "lens"
#: points that the lens reads, in the order of a layer
_RESIDUAL = ("resid_pre", "resid_mid", "resid_post")
#: points of routers, of which `outliers` reports the use of experts
ROUTED = ("router_logits", "expert_indices")
_NEEDS = {OUTLIERS: "hooks of a layer with a row per token", LENS: "resid_pre, resid_mid or resid_post"}
#: ids in one statement
_AT_ONCE = 500


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Model, hooks and sizes of the sessions of a query, by the index.

    Attributes:
        model: of the first session.
        tensors: chosen hooks of the first session.
        sessions, rows: number of sessions, and of the tokens that the model has read in them.
    """

    model: str
    tensors: Mapping[str, TensorInfo]
    sessions: int
    rows: int

    @property
    def bytes(self) -> int:
        """Most bytes of rows to read."""
        return self.rows * sum(row_bytes(DTYPES[info.dtype], info.shape[1]) for info in self.tensors.values())


def filters(query: SessionQuery) -> Iterator[SessionFilter]:
    """The filter of each job's sessions, or of each session."""
    conditions = query.model_dump(include=set(SampleFilter.model_fields))
    for job_id in dict.fromkeys(query.jobs):
        yield SessionFilter(job_id=job_id, **conditions)
    for session_id in dict.fromkeys(query.ids):
        yield SessionFilter(id_prefix=session_id, **conditions)


def survey(
    session: Session,
    query: SessionQuery,
    wanted: Sequence[str],
    *,
    kind: str,
    with_stream: bool = False,
) -> Survey:
    """Find the chosen hooks and the amount of data.

    Args:
        wanted: as `hooks` of an analysis.
        kind: of the analysis.
        with_stream: choose also the hooks of `stream`.

    Raises:
        InvalidRequest: no session matches, the analysis cannot read a wanted hook, or see `stream`.
        UnknownHook: the first session has none of a wanted hook.
    """
    count = rows = 0
    for one in filters(query):
        found = sessions.totals(session, one)
        if not found.sessions:
            continue
        kept = min(found.sessions, query.limit or found.sessions)
        count, rows = count + kept, rows + found.rows * kept // found.sessions
    first = earliest(session, query)
    if first is None:
        raise InvalidRequest(why_none(session, query), param="sessions")
    stored = with_latents({name: TensorInfo.model_validate(info) for name, info in first.hooks.items()})
    usable = {name: info for name, info in stored.items() if _is_usable(name, info, kind)}
    # latents are many and readouts are results: they are read if they are named alone
    default = [
        name
        for name in usable
        if (kind != LENS or hooks.point_of(name) == "resid_post")
        and not is_latents(name)
        and not is_readout(name)
    ]
    names = hooks.matching(stored, wanted) if wanted else default
    unusable = [name for name in names if name not in usable]
    if unusable or not names:
        needed = _NEEDS.get(kind, "rows of floats")
        fault = f"{unusable[0]} cannot be read: the analysis needs" if unusable else "the sessions have no"
        raise InvalidRequest(f"{fault} {needed}", param="hooks")
    if with_stream:
        names += stream(stored)
    return Survey(
        model=first.model, tensors={name: stored[name] for name in names}, sessions=count, rows=rows
    )


def earliest(session: Session, query: SessionQuery) -> SessionRow | None:
    """The oldest session of the first job or id that has one; None if no session matches."""
    for one in filters(query):
        oldest = one.narrow(sa.select(SessionRow)).order_by(SessionRow.created_at, SessionRow.id)
        if (found := session.scalars(oldest.limit(1)).first()) is not None:
            return found
    return None


def why_none(session: Session, query: SessionQuery) -> str:
    """Why a query has no sessions."""
    every = SessionQuery(jobs=query.jobs, ids=query.ids)
    count = sum(sessions.totals(session, one).sessions for one in filters(every))
    if not count:
        return "the jobs have stored no activations, or theirs were deleted; choose a job with a capture"
    if query.condition is not None and query.jobs:
        names = sa.select(SampleRow.condition).where(SampleRow.job_id.in_(query.jobs)).distinct()
        known = sorted(filter(None, session.scalars(names)))
        if query.condition not in known:
            have = f"there are {', '.join(known)}" if known else "the jobs have no conditions"
            return f"no condition {query.condition}; {have}"
    given = query.model_dump(exclude={"jobs", "ids", "limit"}, exclude_none=True)
    filtered = ", ".join(f"{name} {value}" for name, value in given.items())
    return f"none of {count} sessions has {filtered}; drop or change a filter"


def stream(stored: Mapping[str, TensorInfo]) -> list[str]:
    """Names of the stored points of the residual stream, in its order; what lies between two is a component.

    `resid_pre` of a layer is left out if `resid_post` of the layer before it is there, since the two are one.

    Raises:
        InvalidRequest: fewer than two points are stored.
    """
    whole = {name for name, info in stored.items() if info.summary is None}
    found = [
        name
        for name in whole
        if hooks.point_of(name) in _RESIDUAL
        and not (hooks.point_of(name) == "resid_pre" and f"resid_post.{_layer(name) - 1}" in whole)
    ]
    if len(found) < 2:
        raise InvalidRequest(
            f"contributions are differences of points of the residual stream, and {len(found)} of them are "
            "stored; capture resid_pre.0, and resid_mid and resid_post of all layers (attn_out and mlp_out "
            "cannot replace them: some models change them before they add them)",
            param="token",
        )
    return sorted(found, key=lambda name: (_layer(name), _RESIDUAL.index(hooks.point_of(name))))


def component_names(points: Sequence[str]) -> list[str]:
    """Names of the components of a stream: the row at its first point, and what is added up to each further.

    `embed` goes into the first layer; `attn.3`, `mlp.3` and `layer.3` are what these add.
    """
    names = ["embed" if points[0] == "resid_pre.0" else points[0]]
    for before, after in pairwise(points):
        layer, point = _layer(after), hooks.point_of(after)
        starts = before in (f"resid_pre.{layer}", f"resid_post.{layer - 1}")
        if starts and point in ("resid_mid", "resid_post"):
            names.append(f"{'attn' if point == 'resid_mid' else 'layer'}.{layer}")
        elif before == f"resid_mid.{layer}" and point == "resid_post":
            names.append(f"mlp.{layer}")
        else:
            names.append(f"{before} to {after}")
    return names


def _layer(name: str) -> int:
    layer = hooks.layer_of(name)
    return -1 if layer is None else layer


def _is_usable(name: str, info: TensorInfo, kind: str) -> bool:
    point = hooks.point_of(name)
    if kind == OUTLIERS and point in ROUTED:
        return info.summary is None
    if not info.dtype.startswith(("F", "BF")):
        return False
    if kind == OUTLIERS:
        return info.summary is None and hooks.layer_of(name) is not None and point != "expert_weights"
    if kind == LENS:
        return info.summary is None and point in _RESIDUAL
    # per-channel statistics are no rows
    return info.summary is None or not name.endswith(f".{info.summary}")


def session_ids(session: Session, query: SessionQuery) -> list[str]:
    """Ids of the sessions, in the order of the dataset within each job.

    Raises:
        MixedIdentities: sessions were recorded with different models.
    """
    found: list[str] = []
    first: tuple[str, str | None] | None = None
    for one in filters(query):
        columns = sa.select(SessionRow.id, SessionRow.identity_sha256)
        statement = one.narrow(columns.join(SampleRow, SampleRow.id == SessionRow.sample_id))
        statement = statement.order_by(*matrix.in_order()).limit(query.limit)
        for session_id, identity in session.execute(statement):
            first = first or (session_id, identity)
            if identity != first[1]:
                raise MixedIdentities(
                    f"sessions {first[0]} and {session_id} were recorded with different models (identities "
                    f"{short(first[1])} and {short(identity)}); choose sessions of one model"
                )
            found.append(session_id)
    return found


def identity(session: Session, session_id: str) -> ModelIdentity:
    """The model that a session was recorded with. Raises InvalidRequest if it is unknown."""
    of_session = sa.select(JobRow).join(SessionRow).where(SessionRow.id == session_id)
    pinned = jobs.pin_of(session.scalars(of_session).one())
    if pinned is None:
        raise InvalidRequest(f"session {session_id} was recorded with an unknown model", param="sessions")
    return pinned.identity


def sources(session: Session, query: SessionQuery, hook: str) -> list[SessionSource]:
    """The sessions with the tensor of one hook, in the order of the dataset within each job."""
    return [
        source
        for one in filters(query)
        for source in matrix.sources(session, one, [hook], epoch=None, limit=query.limit)
    ]


def labelled(
    session: Session, query: SessionQuery, hook: str, label: str
) -> tuple[list[SessionSource], dict[str, Label]]:
    """The sessions with a label, and the label of each by its id.

    Raises:
        InvalidRequest: no session has this label, see `labels.labels`.
    """
    found = sources(session, query, hook)
    known = labels.labels(session, found, label)
    if not known:
        raise labels.lacking(session, found, label)
    return [source for source in found if source.id in known], known


def check_probe(session: Session, spec: ProbeSpec, hook: str) -> None:
    """Raises InvalidRequest if no probe can be fitted to the labels in these groups and folds."""
    found, label_of = labelled(session, spec.sessions, hook, spec.label)
    group_of = labels.groups(session, found, spec.groups)
    values = np.array([label_of[one.id] for one in found])
    of_group = np.array([group_of[one.id] for one in found])
    require_groups(values, of_group, spec.folds, predicts(values, spec.method))


def check_compare(session: Session, spec: CompareSpec, hook: str) -> None:
    """Raises InvalidRequest if both sides are the same, or have too few groups, or too few in common."""
    sides = compared(session, spec, hook)
    first, second = (set(labels.groups(session, side, spec.groups).values()) for side, _ in sides)
    one, other = ({source.id for source in side} for side, _ in sides)
    if one == other:
        raise InvalidRequest(
            f"both sides are the same {len(one)} sessions; choose two conditions or jobs, or compare the "
            "values of a label",
            param="other",
        )
    if spec.paired:
        require_common(len(first & second))
    else:
        require_sets(len(first), len(second))


def compared(
    session: Session, spec: CompareSpec, hook: str
) -> list[tuple[list[SessionSource], Label | None]]:
    """The sessions of the two sides of a comparison, each with its value of the label.

    Raises:
        InvalidRequest: the label has not two values.
    """
    if spec.label is None:
        return [(sources(session, query, hook), None) for query in spec.queries.values()]
    found, label_of = labelled(session, spec.sessions, hook, spec.label)
    values = np.array([label_of[one.id] for one in found])
    predicts(values, "")
    first, second = sorted(set(label_of.values()), key=lambda one: (isinstance(one, str), one))
    return [([one for one in found if label_of[one.id] == value], value) for value in (first, second)]


@dataclass(frozen=True, kw_only=True)
class SampleTexts:
    """Prompt and answer of a sample, and the length of the answer in tokens."""

    prompt: str
    answer: str
    generated_tokens: int


def texts(session: Session, found: Sequence[SessionSource]) -> dict[str, SampleTexts]:
    """The texts of each session's sample by the session's id."""
    of_samples: dict[str, SampleTexts] = {}
    columns = (
        SampleRow.id,
        SampleRow.prompt,
        SampleRow.completion,
        SampleRow.generated_tokens,
    )
    for part in slices([one.sample_id for one in found], _AT_ONCE):
        for row in session.execute(sa.select(*columns).where(SampleRow.id.in_(part))):
            of_samples[row.id] = SampleTexts(
                prompt=row.prompt or "",
                answer=row.completion or "",
                generated_tokens=row.generated_tokens or 0,
            )
    return {one.id: of_samples[one.sample_id] for one in found}


def stacked(found: matrix.StoredMatrix) -> tuple[Array, list[SessionSource]]:
    """The rows of a matrix as one array [n, width], and the session of each row."""
    rows = np.concatenate([piece.rows for piece in found.pieces])
    return rows, [piece.source for piece in found.pieces for _ in piece.tokens]
