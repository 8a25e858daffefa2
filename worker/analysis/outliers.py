"""Outlier features, massive activations, moments and use of experts, in one pass over the sessions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from actograph.analysis.experts import ExpertUse
from actograph.analysis.massive import MassiveCandidates
from actograph.analysis.moments import Moments
from actograph.analysis.outlier_features import OutlierCounts, OutlierRule
from actograph.contract import hooks
from actograph.contract.analyses import OutliersResult, OutliersSpec
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
            widths: hook -> number of features; those of routers count the use of experts.

        Raises:
            InvalidRequest: the hooks are of routers alone, or of several widths.
        """
        self.experts: dict[int, ExpertUse] = {}
        self.routed = [hook for hook in widths if hooks.point_of(hook) in queries.ROUTED]
        for hook in self.routed:
            self.experts.setdefault(hooks.layer_of(hook) or 0, ExpertUse())
        widths = {hook: width for hook, width in widths.items() if hook not in self.routed}
        if not widths:
            raise InvalidRequest(
                f"{self.routed[0]}: choose other hooks beside those of routers", param="hooks"
            )
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
        for hook in self.routed:
            self._add_routed(hook, block)
        for hook in self.moments:
            rows = block.rows[hook]
            self.moments[hook].add(rows)
            self.massive[hook].add(rows, block.session, block.tokens)
        for name, layers in self.groups.items():
            self.counts[name].add(
                {layer: [block.rows[hook] for hook in together] for layer, together in layers.items()}
            )

    def _add_routed(self, hook: str, block: Block) -> None:
        layer = hooks.layer_of(hook) or 0
        use, rows = self.experts[layer], block.rows[hook]
        if hooks.point_of(hook) == "router_logits":
            use.add_logits(rows)
            return
        use.add_chosen(rows)
        inputs = block.rows.get(f"mlp_in.{layer}")
        if inputs is not None:
            use.add_inputs(rows, inputs, self.rule.threshold)

    def arrays(self) -> dict[str, Any]:
        """The sums as arrays, for `restore`."""
        found: dict[str, Any] = {
            f"experts/{layer}/{name}": array
            for layer, use in self.experts.items()
            for name, array in use.arrays().items()
        }
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
        for layer, use in self.experts.items():
            start = f"experts/{layer}/"
            use.restore({name.removeprefix(start): saved[name] for name in saved if name.startswith(start)})
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
        experts={str(layer): use.summary() for layer, use in sorted(sums.experts.items())},
        **left_out(progress.skipped),
    )
    return Results(
        body=body,
        tables={
            "outlier_features": features,
            "massive_activations": massive,
            "hooks": [{"hook": hook} | numbers for hook, numbers in of_hooks.items()],
        }
        | ({"experts": list(_expert_lines(body.experts))} if body.experts else {}),
        summary=f"{len(features)} outlier features and {len(massive)} massive activations in "
        f"{progress.sessions} sessions",
    )


def _expert_lines(experts: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A line for each layer and expert."""
    for layer, use in experts.items():
        outliers = {one["expert"]: one for one in use["outliers"]}
        for expert, load in enumerate(use["load"]):
            one = outliers.get(expert, {})
            yield {
                "layer": int(layer),
                "expert": expert,
                "load": load,
                "outlier_share": one.get("share"),
                "largest": one.get("largest"),
            }
