"""Patch jobs: pairs of stored sessions, one sample for each pair."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from actograph.contract import hooks
from actograph.contract.errors import InsufficientResources, InvalidRequest
from actograph.contract.job_specs import PatchSpec
from actograph.contract.models import ModelStructure
from actograph.contract.patching import (
    MAX_ROW_BYTES,
    PatchGrid,
    count_from_the_end,
    grid_among,
    grid_of,
    places_of,
)
from actograph.contract.readouts import bias_of, name_of, resolve_readout
from actograph.contract.resources import TensorInfo
from api import checks, session_queries
from api.dependencies import Services
from api.submission import Submission, TokenCounts, outlook, with_defaults
from storage.analyses import pairs, queries, replays
from storage.analyses.pairs import SessionPair

#: pairs of a job, whose arrays are read together, and cells of a pair
MAX_PAIRS, MAX_CELLS = 1000, 100_000


def resolve(services: Services, body: PatchSpec) -> PatchSpec:
    """Set the full ids of jobs and sessions, the model of the sessions, and the defaults.

    Raises:
        UnknownModel
        InvalidRequest: several ids begin like one, a job or a session is unknown, or no session matches.
    """
    changes: dict[str, object] = {}
    with services.database.read() as session:
        for field, query in body.queries.items():
            full = session_queries.with_full_ids(session, query)
            session_queries.require_named(session, full, field)
            first = queries.earliest(session, full)
            if first is None:
                raise InvalidRequest(queries.why_none(session, full), param=field)
            changes |= {field: full}
            changes.setdefault("model", body.model or first.model)
    return with_defaults(services, body.model_copy(update=changes))


def check(services: Services, spec: PatchSpec, owner: str) -> Submission[PatchSpec]:
    """Choose the pairs, and compare the spec with what their sessions store and with the model.

    Raises:
        InvalidRequest: there are no pairs or too many, a hook is not stored, or nothing tells the answer.
        MixedIdentities: the sessions were recorded with different models.
        UnknownHook: the model lacks a point or a layer.
        InsufficientResources: the rows of a pair are too many.
    """
    submission = checks.passed(outlook(services, spec, owner))
    with services.database.read() as session:
        found = pairs.found(session, spec)
        source = found[0].side(spec.source)
        recorded = replays.pin_of(session, source.id)
        stored = pairs.stored_tensors(session, source.id)
    if len(found) > MAX_PAIRS:
        raise InvalidRequest(
            f"{len(found)} pairs match, and one job may have {MAX_PAIRS}; set a limit", param="clean"
        )
    _require_answers(spec, found)
    submission = _with_metric(submission)
    spec, structure = submission.spec, submission.structure
    if spec.model != source.model:
        raise InvalidRequest(
            f"the sessions were recorded with {source.model}; their rows mean nothing to {spec.model}. Leave "
            "model out",
            param="model",
        )
    pinned = None if recorded is None else replays.pin_beside(recorded, structure, spec.engine)
    grid = grid_among(spec, stored) if structure is None else grid_of(spec, structure)
    _require_stored(spec, grid, stored, structure)
    return replace(
        submission,
        samples=partial(pairs.samples_of, found),
        total=len(found),
        pinned=pinned,
        counts=_counts(spec, grid, found, stored),
    )


def expand(services: Services, submission: Submission[PatchSpec]) -> Submission[PatchSpec]:
    """The submission as it is: `check` has chosen its pairs."""
    return submission


def _require_answers(spec: PatchSpec, found: Sequence[SessionPair]) -> None:
    """Raises InvalidRequest if a token is not named, and a session has generated none."""
    if spec.metric_readout is not None:
        return
    needed = {"answer": ("clean", spec.answer)}
    if spec.metric == "logit_difference":
        needed["against"] = ("corrupted", spec.against)
    for field, (side, given) in needed.items():
        lacking = [one.side(side).id for one in found if not one.side(side).generated_tokens]
        if given is None and lacking:
            raise InvalidRequest(
                f"{side} session {lacking[0]} has generated no token; name a token in {field}", param=field
            )


def _with_metric(submission: Submission[PatchSpec]) -> Submission[PatchSpec]:
    """The submission with the name of the readout that is its metric.

    Raises:
        InvalidRequest: the vector does not suit the model or the hook.
        UnknownHook: the model has no such hook.
    """
    spec, param = submission.spec, "metric.readout"
    if (metric := spec.metric_readout) is None:
        return submission
    vector = submission.vectors[param]
    resolve_readout(metric.readout, vector, spec.model, submission.structure, param)
    bias_of(metric.readout, vector, param)
    readout = metric.readout.model_copy(update={"name": name_of(metric.readout, vector)})
    named = metric.model_copy(update={"readout": readout})
    return replace(submission, spec=spec.model_copy(update={"metric": named}))


def _require_stored(
    spec: PatchSpec,
    grid: PatchGrid,
    stored: dict[str, TensorInfo],
    structure: ModelStructure | None,
) -> None:
    """Raises InvalidRequest if the first session lacks whole rows of a hook."""

    def has(name: str) -> bool:
        info = stored.get(name)
        if info is None or info.summary is not None or not info.dtype.startswith(("F", "BF")):
            return False
        known = structure and structure.tensor_of(name)
        return not known or info.shape[1] == known.width

    lacking = [name for name in grid.hooks.values() if not has(name)]
    lacking = lacking or ([] if grid.hooks else [f"{spec.points[0]}.0"])
    if lacking:
        chosen = spec.layers if isinstance(spec.layers, str) else ",".join(map(str, spec.layers))
        points = ",".join(dict.fromkeys(map(hooks.point_of, lacking)))
        raise InvalidRequest(
            f"the {spec.source} sessions store no whole rows of {hooks.in_short(lacking)}. Capture "
            f"{points}@{chosen}, or add them to sessions that exist: "
            f'client.replay(sessions, capture="{points}@{chosen}"), and patch with the replays',
            param="points",
        )


def _counts(
    spec: PatchSpec, grid: PatchGrid, found: Sequence[SessionPair], stored: dict[str, TensorInfo]
) -> TokenCounts:
    """Tokens that the pairs read. Raises InvalidRequest, InsufficientResources."""
    total = cells = 0
    late = count_from_the_end(spec)
    side = "corrupted" if spec.source == "clean" else "clean"
    for one in found:
        prompt = one.side(side).prompt_tokens
        if not late and prompt != one.side(spec.source).prompt_tokens:
            continue  # its sample fails, with the reason
        try:
            places = places_of(spec, prompt)
        except InvalidRequest:
            continue
        own = grid.cells * len(places)
        if own > MAX_CELLS:
            raise InvalidRequest(
                f"a pair of {prompt} tokens has {own:,} cells, and may have {MAX_CELLS:,}; choose layers, "
                "positions or heads",
                param="positions",
            )
        numbers = sum(stored[name].shape[1] for name in grid.hooks.values() if name in stored)
        size = 4 * sum(map(len, places.values())) * numbers
        if size > MAX_ROW_BYTES:
            raise InsufficientResources(
                f"the rows of a pair of {prompt} tokens take {size:,} bytes, and may take "
                f"{MAX_ROW_BYTES:,}; choose layers, points or positions",
                param="positions",
            )
        cells += own
        total += (own + 1) * prompt + one.side(spec.source).prompt_tokens
    return TokenCounts(
        prompt=round(total / len(found)),
        generated=0,
        longest=max(one.side(name).prompt_tokens for one in found for name in spec.queries),
        cells=round(cells / len(found)),
    )
