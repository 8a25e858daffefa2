"""Outlier features, massive activations, moments and use of experts, in one pass over the sessions."""

from collections.abc import Iterator, Mapping
from typing import Any

from actograph.analysis.outlier_features import OutlierRule
from actograph.analysis.outlier_sums import OutlierSums, RowOrigin
from actograph.contract import hooks
from actograph.contract.analyses import OutliersResult, OutliersSpec
from actograph.contract.errors import InvalidRequest
from storage.analyses import queries
from worker.analysis.blocks import BLOCK_BYTES, AlignedRows
from worker.analysis.one_pass import Pass
from worker.analysis.run import AnalysisResults, AnalysisRun, left_out


class BlockSums(OutlierSums):
    """The sums over blocks of sessions."""

    def add(self, block: AlignedRows) -> None:
        for hook in self.moments:
            self.add_values(hook, block.rows[hook], block.session, block.tokens)
        self.add_layers(block.rows)


def run(run: AnalysisRun, spec: OutliersSpec, *, block_bytes: int = BLOCK_BYTES) -> AnalysisResults:
    """Read every selected row once.

    Raises:
        InvalidRequest: no session matches, or the hooks are of several widths, or of routers alone.
        Interrupted: the analysis must end here.
    """
    with run.database.read() as session:
        survey = queries.survey(session, spec.sessions, spec.hooks, kind=spec.kind)
        ids = queries.session_ids(session, spec.sessions)
    rule = OutlierRule(
        threshold=spec.threshold,
        layer_share=spec.layer_share,
        position_share=spec.position_share,
        positions=spec.position_reading,
    )
    places = {
        hook: RowOrigin(hooks.point_of(hook), hooks.layer_of(hook) or 0, info.shape[1])
        for hook, info in survey.tensors.items()
    }
    try:
        sums = BlockSums(places, rule, together=spec.together, massive_magnitude=spec.massive_magnitude)
    except ValueError as error:
        raise InvalidRequest(str(error), param="hooks") from None
    if not sums.moments:
        raise InvalidRequest(
            f"{next(iter(places))}: choose other hooks beside those of routers", param="hooks"
        )
    progress = Pass(ids, list(places), sums)
    progress.read(run, spec.positions, block_bytes=block_bytes)
    return _results(spec, sums, progress)


def _results(spec: OutliersSpec, sums: BlockSums, progress: Pass) -> AnalysisResults:
    features, massive = list(sums.features()), []
    for activation in sums.massive(spec.massive_ratio):
        fields = activation.as_dict()
        session_id = progress.ids[fields.pop("source")]
        massive.append({"hook": fields.pop("hook"), "session_id": session_id} | fields)
    of_hooks = {hook: sums.values_of(hook) for hook in sums.moments}
    body = OutliersResult(
        spec=spec.model_dump(mode="json"),
        sessions=progress.sessions,
        positions=max(counts.positions for counts in sums.counts.values()),
        outlier_features=features,
        massive_activations=massive,
        massive_dropped=sums.massive_dropped,
        hooks=of_hooks,
        experts=sums.use_of_experts(),
        **left_out(progress.skipped),
    )
    return AnalysisResults(
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
