"""Outlier features, massive activations and moments of stored rows, in one pass over the sessions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from actograph.analysis.massive import MassiveCandidates
from actograph.analysis.moments import Moments
from actograph.analysis.outlier_features import OutlierCounts, OutlierRule
from actograph.contract import hooks
from actograph.contract.analyses.results import OutliersResult
from actograph.contract.analyses.specs import OutliersSpec
from actograph.contract.errors import InvalidRequest
from storage.analyses import queries
from worker.analysis.blocks import BLOCK_BYTES, Block
from worker.analysis.one_pass import Pass
from worker.analysis.run import Arrays, Results, Run, left_out

_MOMENTS = ("count", "mean", "m2", "m3", "m4", "largest")


class OutlierSums:
    """Everything that is summed up over blocks of rows."""

    def __init__(self, spec: OutliersSpec, widths: Mapping[str, int]) -> None:
        """
        Args:
            widths: hook -> number of features.
        """
        self.rule = OutlierRule(
            threshold=spec.threshold,
            layer_share=spec.layer_share,
            position_share=spec.position_share,
            positions=spec.position_reading,
        )
        self.moments = {hook: Moments() for hook in widths}
        self.massive = {hook: MassiveCandidates(spec.massive_magnitude) for hook in widths}
        #: points that are counted together -> layer -> hooks
        self.groups: dict[str, dict[int, list[str]]] = {}
        every = "+".join(dict.fromkeys(hooks.point_of(hook) for hook in widths))
        for hook in widths:
            group = self.groups.setdefault(every if spec.together else hooks.point_of(hook), {})
            group.setdefault(hooks.layer_of(hook) or 0, []).append(hook)
        self.counts = {}
        for name, layers in self.groups.items():
            found = {widths[hook] for together in layers.values() for hook in together}
            if len(found) > 1:
                raise InvalidRequest(f"hooks of {name} are {sorted(found)} wide; choose hooks of one width")
            self.counts[name] = OutlierCounts(sorted(layers), found.pop(), spec.threshold)

    def add(self, block: Block) -> None:
        for hook, rows in block.rows.items():
            self.moments[hook].add(rows)
            self.massive[hook].add(rows, block.session, block.tokens)
        for name, layers in self.groups.items():
            self.counts[name].add(
                {layer: [block.rows[hook] for hook in together] for layer, together in layers.items()}
            )

    def arrays(self) -> dict[str, Any]:
        """The sums as arrays, for `restore`."""
        found: dict[str, Any] = {}
        for hook, moments in self.moments.items():
            massive = self.massive[hook]
            found[f"{hook}/moments"] = np.array([getattr(moments, name) for name in _MOMENTS])
            found[f"{hook}/histogram"], found[f"{hook}/values"] = massive.histogram, massive.values
            found[f"{hook}/dropped"] = np.array(massive.dropped)
        for name, counts in self.counts.items():
            for part in ("hits", "any_hits", "largest"):
                found[f"{name}/counts/{part}"] = getattr(counts, part)
            found[f"{name}/counts/positions"] = np.array(counts.positions)
        return found

    def restore(self, saved: Arrays) -> None:
        """Continue from saved sums of the same hooks."""
        for hook, moments in self.moments.items():
            massive = self.massive[hook]
            for name, value in zip(_MOMENTS, saved[f"{hook}/moments"].tolist(), strict=True):
                setattr(moments, name, int(value) if name == "count" else value)
            massive.histogram, massive.values = saved[f"{hook}/histogram"], saved[f"{hook}/values"]
            massive.dropped = int(saved[f"{hook}/dropped"])
        for name, counts in self.counts.items():
            for part in ("hits", "any_hits", "largest"):
                setattr(counts, part, saved[f"{name}/counts/{part}"])
            counts.positions = int(saved[f"{name}/counts/positions"])

    def features(self) -> Iterator[dict[str, Any]]:
        for name, counts in self.counts.items():
            for one in counts.features(self.rule):
                yield {"points": name} | one.as_dict()

    def massive_of(self, ids: Sequence[str], ratio: float) -> list[dict[str, Any]]:
        """The massive activations of all hooks, the largest first."""
        found = []
        for hook, candidates in self.massive.items():
            for one in candidates.found(hook, ratio):
                fields = one.as_dict()
                session_id = ids[fields.pop("source")]
                found.append({"hook": fields.pop("hook"), "session_id": session_id} | fields)
        return sorted(found, key=lambda one: -abs(one["value"]))

    def moments_of(self, hook: str) -> dict[str, Any]:
        one = self.moments[hook]
        return {
            "values": one.count,
            "mean": one.mean,
            "variance": one.variance,
            "kurtosis": one.kurtosis,
            "largest": one.largest,
            "median_magnitude": self.massive[hook].median,
        }


def run(run: Run, spec: OutliersSpec, *, block_bytes: int = BLOCK_BYTES) -> Results:
    """Read every selected row once.

    Raises:
        InvalidRequest: no session matches, or the hooks do not fit together.
        Interrupted: the analysis must end here.
    """
    with run.database.read() as session:
        survey = queries.survey(session, spec.sessions, spec.hooks, kind=spec.kind)
        ids = queries.session_ids(session, spec.sessions)
    sums = OutlierSums(spec, {hook: info.shape[1] for hook, info in survey.tensors.items()})
    progress = Pass(ids, list(survey.tensors), sums)
    progress.read(run, spec.positions, block_bytes=block_bytes)
    return _results(spec, sums, progress)


def _results(spec: OutliersSpec, sums: OutlierSums, progress: Pass) -> Results:
    features = list(sums.features())
    massive = sums.massive_of(progress.ids, spec.massive_ratio)
    of_hooks = {hook: sums.moments_of(hook) for hook in sums.moments}
    body = OutliersResult(
        spec=spec.model_dump(mode="json"),
        sessions=progress.sessions,
        positions=max(counts.positions for counts in sums.counts.values()),
        outlier_features=features,
        massive_activations=massive,
        massive_dropped=sum(one.dropped for one in sums.massive.values()),
        hooks=of_hooks,
        **left_out(progress.skipped),
    )
    return Results(
        body=body,
        tables={
            "outlier_features": features,
            "massive_activations": massive,
            "hooks": [{"hook": hook} | numbers for hook, numbers in of_hooks.items()],
        },
        summary=f"{len(features)} outlier features and {len(massive)} massive activations in "
        f"{progress.sessions} sessions",
    )
