"""The result of an analysis as charts and tables. Kinds without a view of their own get a general one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from actograph.contract import hooks
from api.pages.analyses.charts import FeatureMap, LineChart, Series
from api.pages.analyses.tables import Cell, Table, cell, is_plain, table, title_of, words

#: rows of a map
_MAP_ROWS = 40
#: parts of a list that are shown one by one
_MAX_PARTS = 16
_SCORES = ("auroc", "auroc_interval", "accuracy", "accuracy_interval")
_SIMILARITIES = ("mean_cosine", "cosine_of_means", "cka")
_DIFFERENCES = ("difference_norm", "consistency", "effect_size", "p_value")
_MOMENTS = ("values", "mean", "variance", "kurtosis", "largest", "median_magnitude")


@dataclass(kw_only=True)
class View:
    """Everything that a page shows of one result."""

    facts: list[tuple[str, Cell]] = field(default_factory=list)
    charts: list[LineChart] = field(default_factory=list)
    maps: list[FeatureMap] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    #: parts that fit neither a fact nor a table
    rest: dict[str, Any] = field(default_factory=dict)


def view(result: Mapping[str, Any]) -> View:
    """Charts and tables of a result."""
    shown = View()
    own = _KINDS.get(str(result.get("kind")))
    general = {key: value for key, value in result.items() if key != "kind"}
    if own is not None:
        taken = own(shown, result)
        general = {key: value for key, value in general.items() if key not in taken}
    _general(shown, general)
    return shown


def _probe(shown: View, result: Mapping[str, Any]) -> set[str]:
    found = result.get("hooks", {})
    for point, names in _by_point(found).items():
        baselines = dict.fromkeys(name for hook in names for name in found[hook].get("baselines", {}))
        for score, title in (("auroc", "AUROC"), ("accuracy", "Accuracy")):
            lines = [_with_interval("probe", [found[hook] for hook in names], score)]
            for name in baselines:
                of_name = [found[hook].get("baselines", {}).get(name, {}) for hook in names]
                lines.append(Series(name=words(name), values=[one.get(score) for one in of_name]))
            chart = LineChart(f"{title} of {point}", _labels(names), lines, limits=(0, 1))
            shown.charts.append(chart)
    rows = [
        [hook, words(name), *(one.get(score) for score in _SCORES)]
        for hook, of_hook in found.items()
        for name, one in (("probe", of_hook), *of_hook.get("baselines", {}).items())
    ]
    shown.tables.append(table("Scores", ["hook", "features", *_SCORES], rows))
    about = ("rows", "groups", "width", "classes", "positive_rows", "selectivity", "calibration_error", "c")
    shown.tables.append(
        table("Fits", ["hook", *about], ([hook, *map(one.get, about)] for hook, one in found.items()))
    )
    return {"hooks"}


def _compare(shown: View, result: Mapping[str, Any]) -> set[str]:
    found = result.get("hooks", {})
    for point, names in _by_point(found).items():
        for title, keys in (("Similarity", _SIMILARITIES), ("Effect", ("effect_size", "consistency"))):
            lines = [Series(name=words(key), values=[found[hook].get(key) for hook in names]) for key in keys]
            shown.charts.append(LineChart(f"{title} at {point}", _labels(names), lines))
    head = ("pairs", "unpaired", "first_norm", "second_norm", *_SIMILARITIES, *_DIFFERENCES)
    shown.tables.append(
        table("Hooks", ["hook", *head], ([hook, *map(one.get, head)] for hook, one in found.items()))
    )
    features = ("feature", "difference", "effect_size")
    rows = [[hook, *map(f.get, features)] for hook, one in found.items() for f in one.get("features", [])]
    shown.tables.append(table("Features with the largest effects", ["hook", *features], rows))
    return {"hooks"}


def _outliers(shown: View, result: Mapping[str, Any]) -> set[str]:
    parts = result.get("jobs", [])
    for key, title in (("kurtosis", "Kurtosis"), ("largest", "Largest magnitude")):
        lines: dict[str, dict[str, float | None]] = {}
        for part in parts:
            for hook, one in part.get("hooks", {}).items():
                name = " ".join([*_source(part, parts), hooks.point_of(hook)])
                lines.setdefault(name, {})[_label(hook)] = one.get(key)
        labels = list(dict.fromkeys(label for line in lines.values() for label in line))
        series = [
            Series(name=name, values=[line.get(label) for label in labels]) for name, line in lines.items()
        ]
        shown.charts.append(LineChart(title, labels, series, is_log=True))
    for part in parts:
        shown.maps += _maps(part, parts)
    features = ("points", "feature", "layers", "layer_share", "position_share", "largest")
    massive = ("session_id", "hook", "position", "feature", "value", "ratio")
    for title, key, head in (
        ("Outlier features", "outlier_features", features),
        ("Massive activations", "massive_activations", massive),
    ):
        rows = [[part.get("job_id"), *map(one.get, head)] for part in parts for one in part.get(key, [])]
        shown.tables.append(table(title, ["job", *head], rows))
    rows = [
        [part.get("job_id"), hook, *map(one.get, _MOMENTS)]
        for part in parts
        for hook, one in part.get("hooks", {}).items()
    ]
    shown.tables.append(table("Moments", ["job", "hook", *_MOMENTS], rows))
    experts = ("tokens", "imbalance", "router_entropy", "load")
    rows = [
        [part.get("job_id"), int(layer), *map(one.get, experts)]
        for part in parts
        for layer, one in part.get("experts", {}).items()
    ]
    if rows:
        shown.tables.append(table("Experts", ["job", "layer", *experts], rows))
    return {"jobs"}


def _maps(part: Mapping[str, Any], parts: Sequence[Any]) -> Iterable[FeatureMap]:
    """A map for each group of points with outlier features."""
    for group in part.get("positions", {}):
        features = [one for one in part.get("outlier_features", []) if one.get("points") == group]
        named = group.split("+")
        layers = {hooks.layer_of(hook) for hook in part.get("hooks", {}) if hooks.point_of(hook) in named}
        if not features:
            continue
        yield FeatureMap(
            title=" ".join([*_source(part, parts), group]),
            layers=sorted(layer for layer in layers if layer is not None),
            rows=[(str(one["feature"]), one["layers"]) for one in features[:_MAP_ROWS]],
            note=f"The first {_MAP_ROWS} of {len(features)} features." if len(features) > _MAP_ROWS else "",
        )


def _source(part: Mapping[str, Any], parts: Sequence[Any]) -> list[str]:
    """The name of a job in a chart; none if the analysis has one job."""
    return [] if len(parts) == 1 else [str(part.get("model", "")), str(part.get("job_id", ""))[:8]]


def _general(shown: View, values: Mapping[str, Any], name: str = "") -> None:
    """Facts of numbers and texts, tables of lists and mappings of objects, and the rest as it is."""
    for key, value in values.items():
        title = f"{name} {words(key)}".strip()
        if is_plain(value):
            shown.facts.append((title, cell(value)))
        elif isinstance(value, list) and all(isinstance(one, Mapping) for one in value):
            head = [name for name in dict.fromkeys(f for one in value for f in one) if _fits(value, name)]
            if head:
                shown.tables.append(table(title, head, ([one.get(f) for f in head] for one in value)))
            for number, one in enumerate(value[:_MAX_PARTS], 1):
                deep = {key: found for key, found in one.items() if key not in head}
                _general(
                    shown, deep, "" if len(value) == 1 else f"{name} {one.get('job_id') or number}".strip()
                )
        elif isinstance(value, Mapping) and value and all(isinstance(o, Mapping) for o in value.values()):
            _of_objects(shown, title, value, name)
        elif isinstance(value, Mapping) and value and all(map(is_plain, value.values())):
            shown.tables.append(table(title, ["name", "value"], value.items()))
        elif value:
            shown.rest[title] = value


def _of_objects(shown: View, title: str, found: Mapping[str, Mapping[str, Any]], name: str) -> None:
    """A table with a row for each object, and a chart of each number if the names are hooks."""
    keys = list(dict.fromkeys(key for one in found.values() for key in one))
    head = [key for key in keys if _fits(list(found.values()), key)]
    shown.tables.append(table(title, ["name", *head], ([n, *map(o.get, head)] for n, o in found.items())))
    deep = {
        f"{of} {key}": one[key] for of, one in found.items() for key in one if key not in head and one[key]
    }
    if deep:
        shown.rest[title] = deep
    layered = {hook: one for hook, one in found.items() if hooks.layer_of(hook) is not None}
    for point, names in _by_point(layered).items():
        for key in head if len(names) > 1 else ():
            values = [layered[hook].get(key) for hook in names]
            if all(_is_number(value) for value in values):
                line = Series(name=words(key), values=values)
                title = f"{title_of(f'{name} {key}'.strip())} of {point}"
                shown.charts.append(LineChart(title, _labels(names), [line]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _fits(values: Sequence[Mapping[str, Any]], key: str) -> bool:
    return all(is_plain(one.get(key)) for one in values)


def _by_point(names: Iterable[str]) -> dict[str, list[str]]:
    """Point -> its hooks, by layer."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(hooks.point_of(name), []).append(name)
    return {point: sorted(of, key=lambda name: hooks.layer_of(name) or 0) for point, of in found.items()}


def _label(hook: str) -> str:
    layer = hooks.layer_of(hook)
    return hook if layer is None else str(layer)


def _labels(names: Sequence[str]) -> list[str]:
    return [_label(name) for name in names]


def _with_interval(name: str, of_hooks: Sequence[Mapping[str, Any]], score: str) -> Series:
    ends = [one.get(f"{score}_interval") or (None, None) for one in of_hooks]
    return Series(
        name=name,
        values=[one.get(score) for one in of_hooks],
        lows=[low for low, _ in ends],
        highs=[high for _, high in ends],
    )


#: kind -> adds its charts and tables, and returns the keys that they cover
_KINDS: Mapping[str, Callable[[View, Mapping[str, Any]], set[str]]] = {
    "probe": _probe,
    "compare": _compare,
    "outliers": _outliers,
}
