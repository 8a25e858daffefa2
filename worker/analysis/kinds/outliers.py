"""Kind `outliers`: outlier features, massive activations, moments and the use of experts."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from actograph.analysis.outliers.experts import ExpertUse
from actograph.analysis.outliers.features import OutlierCounts, OutlierRule
from actograph.analysis.outliers.massive import MassiveCandidates
from actograph.analysis.outliers.moments import Moments
from actograph.contract import hooks
from actograph.contract.errors import InvalidRequest
from actograph.contract.specs import OutliersSpec
from storage.sessions.reader import SessionReader
from worker.analysis.context import Context, SourceJob
from worker.analysis.results import OKABE_ITO, Results, figures, new_figure, table
from worker.analysis.state import State

ROUTED = ("router_logits", "expert_indices", "expert_weights")


class JobOutliers:
    """Sums over the sessions of one job."""

    def __init__(self, job: SourceJob, spec: OutliersSpec) -> None:
        self.job = job
        self._spec = spec
        #: name of the group -> its hooks
        self.groups: dict[str, list[str]] = {}
        self.routed = [name for name in job.hooks if hooks.point_of(name) in ROUTED]
        values = [name for name in job.hooks if name not in self.routed]
        together = "+".join(dict.fromkeys(hooks.point_of(name) for name in values))
        for name in values:
            group = together if spec.together else hooks.point_of(name)
            self.groups.setdefault(group, []).append(name)
        self.counts: dict[str, OutlierCounts] = {}
        self.moments = {name: Moments() for name in values}
        self.massive = {name: MassiveCandidates(spec.massive_magnitude) for name in values}
        self.experts = {_layer(name): ExpertUse() for name in self.routed}

    def add(self, context: Context, reader: SessionReader, source: int) -> None:
        """Add one session. `source` is its number among all sessions."""
        for group, names in self.groups.items():
            for tokens, block in context.rows(reader, names):
                counts = self.counts.get(group) or self._new_counts(group, block)
                by_layer: dict[int, list[Any]] = {layer: [] for layer in counts.layers}
                for name, values in block.items():
                    by_layer[_layer(name)].append(values)
                    self.moments[name].add(values)
                    self.massive[name].add(values, source, tokens.tolist())
                counts.add(by_layer)
        for name in self.routed:
            use = self.experts[_layer(name)]
            inputs = f"mlp_in.{_layer(name)}"
            is_chosen = hooks.point_of(name) == "expert_indices"
            reads_inputs = is_chosen and inputs in self.moments
            for _, block in context.rows(reader, [name, inputs] if reads_inputs else [name]):
                if is_chosen:
                    use.add_chosen(block[name])
                    if reads_inputs:
                        use.add_inputs(block[name], block[inputs], self._spec.threshold)
                elif hooks.point_of(name) == "router_logits":
                    use.add_logits(block[name])

    def _new_counts(self, group: str, block: Mapping[str, Any]) -> OutlierCounts:
        widths = {values.shape[1] for values in block.values()}
        if len(widths) != 1:
            raise InvalidRequest(f"the hooks of {group} differ in width: {sorted(widths)}", param="points")
        return self._counts_of(group, widths.pop())

    def _counts_of(self, group: str, width: int) -> OutlierCounts:
        layers = sorted({_layer(name) for name in self.groups[group]})
        self.counts[group] = OutlierCounts(layers, width, self._spec.threshold)
        return self.counts[group]

    def state(self) -> State:
        """All sums as arrays."""
        parts: dict[str, Any] = {}
        for kind, sums in self._sums():
            for name, one in sums.items():
                parts |= {f"{self.job.id}|{kind}|{name}|{key}": array for key, array in one.state().items()}
        return parts

    def restore(self, state: State) -> None:
        """Go on from a checkpoint."""
        for group in self.groups:
            found = state.get(f"{self.job.id}|counts|{group}|any_hits")
            if found is not None:
                self._counts_of(group, len(found))
        for kind, sums in self._sums():
            for name, one in sums.items():
                start = f"{self.job.id}|{kind}|{name}|"
                one.restore({key[len(start) :]: a for key, a in state.items() if key.startswith(start)})

    def _sums(self) -> list[tuple[str, Mapping[Any, Any]]]:
        return [
            ("counts", self.counts),
            ("moments", self.moments),
            ("massive", self.massive),
            ("experts", self.experts),
        ]

    def summary(self, sessions: list[str]) -> dict[str, Any]:
        """The results of this job."""
        spec = self._spec
        rule = OutlierRule(
            threshold=spec.threshold,
            layer_share=spec.layer_share,
            position_share=spec.position_share,
            positions=spec.positions,
        )
        massive = []
        for name, candidates in self.massive.items():
            for one in candidates.found(name, spec.massive_ratio):
                found = one.as_dict()
                massive.append(found | {"session_id": sessions[found.pop("source")]})
        return {
            "job_id": self.job.id,
            "model": self.job.model,
            "identity_sha256": self.job.identity_sha256,
            "sessions": len(self.job.session_ids),
            "positions": {group: counts.positions for group, counts in self.counts.items()},
            "outlier_features": [
                {"points": group} | one.as_dict()
                for group, counts in self.counts.items()
                for one in counts.features(rule)
            ],
            "massive_activations": sorted(massive, key=lambda one: -abs(one["value"])),
            "hooks": {
                name: {
                    "values": one.count,
                    "mean": one.mean,
                    "variance": one.variance,
                    "kurtosis": one.kurtosis,
                    "largest": one.largest,
                    "median_magnitude": self.massive[name].median,
                }
                for name, one in self.moments.items()
            },
            "experts": {str(layer): use.summary() for layer, use in self.experts.items()},
        }


def run(context: Context) -> Results:
    """Read every session once and report all jobs side by side."""
    spec = context.spec
    assert isinstance(spec, OutliersSpec)
    parts = [JobOutliers(job, spec) for job in context.jobs]
    state = context.resume()
    if state is not None:
        for part in parts:
            part.restore(state)
    for part in parts:
        for reader in context.sessions(part.job):
            part.add(context, reader, len(context.done))
            context.finish(
                reader.session_id,
                lambda: {key: array for one in parts for key, array in one.state().items()},
            )
    found = [part.summary(context.done) for part in parts]
    return Results(
        summary={"kind": "outliers", "positions": spec.positions, "jobs": found},
        files=_tables(found) | figures("outliers", _figure(found)),
    )


def _layer(name: str) -> int:
    layer = hooks.layer_of(name)
    return -1 if layer is None else layer


def _tables(found: list[dict[str, Any]]) -> dict[str, bytes]:
    shares = ("layer_share", "position_share", "largest")
    features = [
        [
            *_about(one),
            f["points"],
            f["feature"],
            " ".join(map(str, f["layers"])),
            *(f[key] for key in shares),
        ]
        for one in found
        for f in one["outlier_features"]
    ]
    numbers = ("values", "mean", "variance", "kurtosis", "largest", "median_magnitude")
    of_hooks = [
        [*_about(one), name, *(values[key] for key in numbers)]
        for one in found
        for name, values in one["hooks"].items()
    ]
    of_experts = [
        [*_about(one), layer, e["expert"], e["tokens"], e["share"], e["largest"]]
        for one in found
        for layer, use in one["experts"].items()
        for e in use["outliers"]
    ]
    expert_head = ["job_id", "model", "layer", "expert", "tokens", "outlier_share", "largest"]
    head = ["job_id", "model", "points", "feature", "layers", *shares]
    return {
        "outlier_features.csv": table(head, features),
        "hooks.csv": table(["job_id", "model", "hook", *numbers], of_hooks),
    } | ({"experts.csv": table(expert_head, of_experts)} if of_experts else {})


def _about(one: dict[str, Any]) -> tuple[str, str]:
    return one["job_id"], one["model"]


def _words(numbers: list[int]) -> str:
    return " ".join(str(number) for number in numbers)


def _figure(found: list[dict[str, Any]]) -> Any:
    """Kurtosis and largest magnitude over the layers, a line for each job and point."""
    figure = new_figure(9, 3.5)
    axes = figure.subplots(1, 2)
    lines = 0
    for one in found:
        for point in dict.fromkeys(hooks.point_of(name) for name in one["hooks"]):
            chosen = [name for name in one["hooks"] if hooks.point_of(name) == point]
            layers = [_layer(name) for name in chosen]
            label = f"{one['model']} {one['job_id'][:8]} {point}"
            for axis, key in zip(axes, ("kurtosis", "largest"), strict=True):
                values = np.array([one["hooks"][name][key] for name in chosen], float)
                axis.plot(layers, values, "o-", ms=3, color=OKABE_ITO[lines % 8], label=label)
            lines += 1
    for axis, title in zip(axes, ("kurtosis", "largest magnitude"), strict=True):
        axis.set(xlabel="layer", title=title)
        if lines:
            axis.set_yscale("log")
    if lines:
        axes[0].legend(fontsize=7)
    return figure
