"""The figure of an analysis: a probe or the lens over layers, or a map of outlier features."""

from collections.abc import Mapping, Sequence
from typing import Any

from actograph.contract import hooks
from actograph.contract.analyses import (
    SCORE_TITLES,
    AnalysisResult,
    LensResult,
    OutliersResult,
    ProbesResult,
    ranked_by,
)
from actograph.report import figures
from actograph.report.figures import Bar, Figure

Numbers = Mapping[str, Mapping[str, Any]]
_LENS = {"agreement": "agrees with the last hook", "next_is_top": "next token on top"}


def figure_of(result: AnalysisResult, name: str = "") -> Figure | None:
    """Draw the figure of a result; None if it has none.

    Args:
        name: of the figure; by default that of the main table.

    Raises:
        PackageMissing: matplotlib is not installed.
    """
    if isinstance(result, ProbesResult):
        title = SCORE_TITLES[ranked_by(next(iter(result.hooks.values())))]
        return figures.curves(name or "probes", "Probe and baselines", _probe(result.hooks), title)
    if isinstance(result, OutliersResult) and result.outlier_features:
        layers = _layers(result.outlier_features)
        return figures.outlier_map(name or "outlier_features", "Layers of each outlier feature", layers)
    if isinstance(result, LensResult):
        return figures.curves(name or "lens", "Logit lens", _lens(result.hooks), "share of rows")
    return None


def _probe(found: Numbers) -> dict[str, list[Bar]]:
    """The probe of each point, and the baselines of the first."""
    series: dict[str, list[Bar]] = {}
    points = _points(found)
    for point, names in points.items():
        title = "probe" if len(points) == 1 else point
        series[title] = [_bar(label, found[hook]) for hook, label in names.items()]
    names = next(iter(points.values()))
    for baseline in found[next(iter(names))]["baselines"]:
        kept = {hook: label for hook, label in names.items() if baseline in found[hook]["baselines"]}
        series[baseline] = [_bar(label, found[hook]["baselines"][baseline]) for hook, label in kept.items()]
    return series


def _bar(label: str, scores: Mapping[str, Any]) -> Bar:
    score = ranked_by(scores)
    return Bar(label, scores[score], *scores[f"{score}_interval"])


def _lens(found: Numbers) -> dict[str, list[Bar]]:
    series: dict[str, list[Bar]] = {}
    points = _points(found)
    for point, names in points.items():
        for number, title in _LENS.items():
            known = {label: found[hook][number] for hook, label in names.items()}
            bars = [Bar(label, value) for label, value in known.items() if value is not None]
            series[title if len(points) == 1 else f"{point}: {title}"] = bars
    return {title: bars for title, bars in series.items() if bars}


def _points(found: Numbers) -> dict[str, dict[str, str]]:
    """Hooks of each point in the order of their layers, with labels; one group if a hook has no layer."""
    if any(hooks.layer_of(hook) is None for hook in found):
        return {"": {hook: hook for hook in found}}
    points: dict[str, dict[str, str]] = {}
    for hook in sorted(found, key=lambda hook: hooks.layer_of(hook) or 0):
        points.setdefault(hooks.point_of(hook), {})[hook] = str(hooks.layer_of(hook))
    return points


def _layers(features: Sequence[Mapping[str, Any]]) -> dict[int, list[int]]:
    """The layers of each feature, of all points together."""
    found: dict[int, set[int]] = {}
    for one in features:
        found.setdefault(int(one["feature"]), set()).update(one["layers"])
    return {feature: sorted(layers) for feature, layers in found.items()}
