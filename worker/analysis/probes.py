"""A linear probe on each hook of stored sessions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from actograph.analysis.probe import corrected_p_values, probe
from actograph.analysis.probe_labels import predicts
from actograph.analysis.regression import regression
from actograph.contract.analyses import SCORE_TITLES, ProbeSpec, ProbesResult, ranked_by
from actograph.contract.hooks import in_short
from actograph.tensor_files import Array
from storage.analyses import queries
from storage.results import labels
from storage.results.matrix import SessionSource
from worker.analysis.by_hook import Analysed, ByHook
from worker.analysis.run import AnalysisResults, AnalysisRun, left_out

#: further columns of `probes.csv`
_NUMBERS = {
    "auroc": ("accuracy", "log_loss", "brier", "calibration_error", "positive_rows"),
    "r2": ("spearman",),
}


def run(run: AnalysisRun, spec: ProbeSpec) -> AnalysisResults:
    """Fit and score the probes.

    Raises:
        InvalidRequest: no session matches, or the labels are not of two values.
        Interrupted: the analysis must end here.
    """
    with run.database.read() as session:
        survey = queries.survey(session, spec.sessions, spec.hooks, kind=spec.kind)
        ids = queries.session_ids(session, spec.sessions)
    hooks = list(survey.tensors)
    done = ByHook.resumed(run.saved(), ids)
    done.each(run, hooks, lambda hook: _fit(run, spec, done, hook))
    results = {hook: done.results[hook] for hook in hooks}
    score = ranked_by(next(iter(results.values())))
    if all(one.get(f"shuffled_{score}s") for one in results.values()):
        shuffled = {hook: (one[score], one[f"shuffled_{score}s"]) for hook, one in results.items()}
        for hook, corrected in corrected_p_values(shuffled).items():
            results[hook] |= {"p_corrected": corrected}
    hooks_of: dict[str, list[str]] = {}
    for hook, one in results.items():
        for warning in one.get("warnings", []):
            hooks_of.setdefault(warning, []).append(hook)
    warnings = [f"{in_short(own)}: {warning}" for warning, own in hooks_of.items()]
    return AnalysisResults(
        body=ProbesResult(
            spec=spec.model_dump(mode="json"),
            sessions=len(done.read),
            hooks=results,
            warnings=warnings,
            **left_out(done.skipped),
        ),
        tables={"probes": [_line(hook, one) for hook, one in results.items()]},
        arrays=done.directions,
        vectors=done.vectors(spec, survey.model),
        summary=_summary(results, warnings),
    )


def _summary(results: Mapping[str, Mapping[str, Any]], warnings: Sequence[str]) -> str:
    score = ranked_by(next(iter(results.values())))
    best = max(results, key=lambda hook: float(results[hook][score]))
    text = f"{len(results)} probes; the best of {best}: {SCORE_TITLES[score]} {results[best][score]:.3f}"
    if (corrected := results[best].get("p_corrected")) is not None:
        text += f", p = {corrected:.3g} as the best of {len(results)}"
    return f"{text}; {len(warnings)} warnings" if warnings else text


def _fit(run: AnalysisRun, spec: ProbeSpec, done: ByHook, hook: str) -> Analysed:
    with run.database.read() as session:
        found, label_of = queries.labelled(session, spec.sessions, hook, spec.label)
        texts = queries.texts(session, found)
        group_of = labels.groups(session, found, spec.groups)
    rows, origins = queries.stacked(done.matrix(run, found, hook, spec))
    values = np.array([label_of[one.id] for one in origins])
    given: dict[str, Any] = {"groups": [group_of[one.id] for one in origins]}
    given |= spec.model_dump(include={"folds", "c", "seed", "resamples", "level", "shuffles"})
    given |= {"others": _baselines(origins, texts)}
    if predicts(values, spec.method) == "numbers":
        numbers = regression(rows, values, **given)
        return numbers.as_json() | {"bias": numbers.bias}, numbers.weights
    fitted = probe(rows, values, kind=spec.method, **given)
    return fitted.as_json() | {"bias": fitted.direction.bias}, fitted.direction.weights


def _baselines(
    origins: Sequence[SessionSource], texts: Mapping[str, queries.SampleTexts]
) -> dict[str, Array | list[str]]:
    """Lengths and words of the answers and of the prompts, of the prompts alone if nothing was generated.

    Words are left out if answers have several rows, which would only repeat them.
    """
    of_rows = [texts[one.id] for one in origins]
    prompts = np.array([one.prompt_tokens for one in origins])[:, None]
    has_words = len(origins) == len({one.id for one in origins})
    found: dict[str, Array | list[str]] = {}
    if answered := any(one.generated_tokens for one in of_rows):
        found["length"] = np.array([one.generated_tokens for one in of_rows])[:, None]
        if has_words:
            found["bag_of_words"] = [one.answer for one in of_rows]
    found["prompt_length" if answered else "length"] = prompts
    if has_words:
        found["prompt_words" if answered else "bag_of_words"] = [one.prompt for one in of_rows]
    return found


def _line(hook: str, found: dict[str, Any]) -> dict[str, Any]:
    score = ranked_by(found)
    names = (score, *_NUMBERS[score], "rows", "groups")
    low, high = found[f"{score}_interval"]
    baselines = {f"{score}_{name}": one[score] for name, one in found["baselines"].items()}
    p_values = {name: found.get(name) for name in ("p_value", "p_corrected")}
    numbers = {name: found[name] for name in names}
    return {"hook": hook, **numbers, "low": low, "high": high, **p_values, **baselines}
