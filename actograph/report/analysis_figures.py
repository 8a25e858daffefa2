"""Figures of analyses: a probe or the lens over layers, a grid of tokens, a map of outlier features."""

from collections.abc import Mapping, Sequence
from typing import Any

from actograph.contract import hooks
from actograph.contract.analyses import (
    SCORE_TITLES,
    AnalysisResult,
    LensGrid,
    LensResult,
    OutliersResult,
    ProbesResult,
    ranked_by,
    visible,
)
from actograph.report import figures
from actograph.report.figures import Bar, Figure
from actograph.short_texts import shorten

Numbers = Mapping[str, Mapping[str, Any]]
_LENS = {"agreement": "agrees with the last hook", "next_is_top": "next token on top"}


def figures_of(result: AnalysisResult, prefix: str = "") -> list[Figure]:
    """Draw the figures of a result, the most telling first; their titles have what was read.

    Args:
        prefix: of their names.

    Raises:
        PackageMissing: matplotlib is not installed.
    """
    if isinstance(result, ProbesResult):
        first = next(iter(result.hooks.values()))
        score = SCORE_TITLES[ranked_by(first)]
        rows = max(one["rows"] for one in result.hooks.values())
        groups = max(one["groups"] for one in result.hooks.values())
        title = (
            f"Probe of {result.spec['label']} and baselines: {rows} rows of {groups} groups, {_about(result)}"
        )
        return [figures.curves(f"{prefix}probes", title, _probe(result.hooks), score)]
    if isinstance(result, OutliersResult) and result.outlier_features:
        title = f"Layers of each outlier feature: {result.positions} tokens, {_about(result)}"
        layers = _layers(result.outlier_features)
        return [figures.outlier_map(f"{prefix}outlier_features", title, layers)]
    if isinstance(result, LensResult):
        rows = max(one["rows"] for one in result.hooks.values())
        title = f"Logit lens: {rows} rows of each hook, {_about(result)}"
        curves = figures.curves(f"{prefix}lens", title, _lens(result.hooks), "share of rows")
        return [curves] if result.grid is None else [_grid(f"{prefix}lens_grid", result.grid), curves]
    return []


def _about(result: AnalysisResult) -> str:
    """The sessions and tokens that were read."""
    reduce = result.spec.get("reduce", "none")
    sessions = f"{result.sessions} session{'s' if result.sessions != 1 else ''}"
    return f"positions {result.spec['positions']}{'' if reduce == 'none' else f' ({reduce})'} of {sessions}"


def _grid(name: str, found: LensGrid) -> Figure:
    columns = [
        f"{position} {visible(text)}" for position, text in zip(found.positions, found.inputs, strict=True)
    ]
    rows = {
        hook: [(visible(text), value) for text, value in zip(texts, found.probabilities[hook], strict=True)]
        for hook, texts in found.tokens.items()
    }
    title = (
        f"Tokens on top by the logit lens: {len(columns)} positions of session {shorten(found.session_id)}"
    )
    return figures.grid(name, title, columns, rows, x="position and input", y="hook", unit="probability")


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
