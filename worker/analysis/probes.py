"""A linear probe on each hook of stored sessions."""

from typing import Any

import numpy as np

from actograph.analysis.probe import probe
from actograph.contract.analyses.results import ProbesResult
from actograph.contract.analyses.specs import ProbeSpec
from actograph.contract.errors import InvalidRequest
from storage.analyses import queries
from storage.results.matrix import Source
from worker.analysis.by_hook import Analysed, ByHook
from worker.analysis.run import Results, Run, left_out


def run(run: Run, spec: ProbeSpec) -> Results:
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
    best = max(results, key=lambda hook: float(results[hook]["auroc"]))
    return Results(
        body=ProbesResult(
            spec=spec.model_dump(mode="json"),
            sessions=len(done.read),
            hooks=results,
            **left_out(done.skipped),
        ),
        tables={"probes": [_line(hook, one) for hook, one in results.items()]},
        arrays=done.directions,
        vectors=done.vectors(spec, survey.model),
        summary=f"{len(results)} probes; the best of {best}: AUROC {results[best]['auroc']:.3f}",
    )


def _fit(run: Run, spec: ProbeSpec, done: ByHook, hook: str) -> Analysed:
    with run.database.read() as session:
        found, labels = queries.labelled(session, spec.sessions, hook, spec.label)
        texts = queries.completions(session, found)
    if not found:
        raise InvalidRequest(f"no session has the label {spec.label!r}", param="label")
    rows, origins = queries.stacked(done.matrix(run, found, hook, spec))
    # rows of the same answer would only repeat its words
    has_texts = len(origins) == len({one.id for one in origins}) and any(map(str.strip, texts.values()))
    fitted = probe(
        rows,
        [labels[one.id] for one in origins],
        groups=[one.sample_index for one in origins],
        kind=spec.method,
        folds=spec.folds,
        c=spec.c,
        seed=spec.seed,
        resamples=spec.resamples,
        level=spec.level,
        lengths=np.array([_generated(one) for one in origins]),
        texts=[texts[one.id] for one in origins] if has_texts else None,
    )
    direction = fitted.direction
    return fitted.as_json() | {"bias": direction.bias}, direction.weights


def _generated(source: Source) -> int:
    """Generated tokens of a session: the model reads all but the last of them."""
    return max(0, source.rows + 1 - source.prompt_tokens)


def _line(hook: str, found: dict[str, Any]) -> dict[str, Any]:
    names = ("auroc", "accuracy", "log_loss", "brier", "calibration_error", "rows", "groups", "positive_rows")
    low, high = found["auroc_interval"]
    baselines = {f"auroc_{name}": one["auroc"] for name, one in found["baselines"].items()}
    return {"hook": hook, **{name: found[name] for name in names}, "low": low, "high": high, **baselines}
