"""Kind `probe`: a linear probe for each hook, beside its baselines."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.analysis.probes.probe import ProbeOptions, ProbeResult, probe
from actograph.analysis.probes.transfers import OtherRows, transfer_report
from actograph.analysis.probes.words import bag_of_words
from actograph.contract import hooks
from actograph.contract.errors import InvalidRequest
from actograph.contract.specs import ProbeSpec
from storage.files.dataset_sources import Uploads
from worker.analysis.context import Context
from worker.analysis.labels import labels_of
from worker.analysis.results import OKABE_ITO, Results, figures, new_figure, table
from worker.analysis.session_rows import gather, store_vectors

_SCORES = ("auroc", "auroc_interval", "accuracy", "accuracy_interval")


class Probing:
    """Rows, labels and baselines of one probe job."""

    def __init__(self, context: Context, spec: ProbeSpec) -> None:
        captured = set.intersection(*(set(job.captured) for job in context.jobs))
        selected = [name for name in context.jobs[0].hooks if all(name in job.hooks for job in context.jobs)]
        wanted = {name for hook in selected for name in _baseline_hooks(hook).values()}
        gathered = gather(context, also=sorted(wanted & captured - set(selected)))
        self._spec = spec
        self._features = gathered.features
        self._about = gathered.about
        self._labels = labels_of(spec, gathered.about, Uploads(context.database, context.store))
        #: hooks that are probed, in the order of capture
        self.hooks = selected
        #: baselines for which a hook is missing
        self.not_captured = sorted(
            {
                name
                for hook in selected
                for name, other in _baseline_hooks(hook).items()
                if other not in captured
            }
        )
        #: sessions that are fitted on
        self.rows = self._rows_of(spec.jobs)
        self.skipped = gathered.skipped + sum(label is None for label in self._labels)
        self._options = ProbeOptions(
            kind=spec.probe, folds=spec.folds, c=spec.c, seed=spec.seed, resamples=spec.resamples,
            shuffles=spec.shuffles,
        )  # fmt: skip
        self._fits: dict[str, ProbeResult] = {}
        self._words: NDArray[np.float32] | None = None

    def _rows_of(self, job_ids: Sequence[str]) -> list[int]:
        chosen = [
            number
            for number, one in enumerate(self._about)
            if one.job_id in job_ids and self._labels[number] is not None
        ]
        if not chosen:
            raise InvalidRequest(
                f"no session of {', '.join(job_ids)} has the label {self._spec.label!r}", param="label"
            )
        return chosen

    def fit(self, hook: str) -> ProbeResult:
        """Fit and score the probe of a hook, and its baselines."""
        about = [self._about[number] for number in self.rows]
        others = {name: self._features[one][self.rows] for name, one in self._baselines(hook).items()}
        return probe(
            self._features[hook][self.rows],
            [self._labels[number] for number in self.rows],
            [one.problem for one in about],
            lengths=np.array([one.generated_tokens for one in about]),
            texts=[one.text for one in about],
            others=others,
            options=self._options,
        )

    def transfer(self, fitted: ProbeResult, hook: str, job_id: str) -> dict[str, Any]:
        """Score a probe on another job, beside baselines that were fitted as the probe was."""
        rows = self._rows_of([job_id])
        of_name: dict[str, NDArray[Any]] = {"length": self._lengths(), "bag_of_words": self._bags()}
        of_name |= {name: self._features[one] for name, one in self._baselines(hook).items()}
        problems = [self._about[number].problem for number in rows]
        report = transfer_report(
            fitted,
            self._features[hook][rows],
            OtherRows([self._labels[number] for number in rows], problems),
            {
                name: (self._baseline(self._baselines(hook).get(name, name), values), values[rows])
                for name, values in of_name.items()
            },
        )
        trained = {self._about[number].problem for number in self.rows}
        return report | {"shared_groups": len(trained & set(problems))}

    def _baselines(self, hook: str) -> dict[str, str]:
        """Hooks of a hook's baselines that were captured: name of the baseline -> hook."""
        return {name: one for name, one in _baseline_hooks(hook).items() if one in self._features}

    def _baseline(self, key: str, values: NDArray[Any]) -> ProbeResult:
        """Probe of a baseline's features, fitted once for all hooks; `key` names the features."""
        if key not in self._fits:
            self._fits[key] = probe(
                values[self.rows],
                [self._labels[number] for number in self.rows],
                [self._about[number].problem for number in self.rows],
                options=replace(self._options, resamples=1, shuffles=0),
            )
        return self._fits[key]

    def _lengths(self) -> NDArray[np.float64]:
        return np.array([[one.generated_tokens] for one in self._about], np.float64)

    def _bags(self) -> NDArray[np.float32]:
        """Words of all sessions, so that fitted and scored rows count the same ones."""
        if self._words is None:
            self._words = bag_of_words([one.text for one in self._about])
        return self._words


def _baseline_hooks(hook: str) -> dict[str, str]:
    """Hooks whose rows are baselines of a hook: `layer_0` of the same point, and `embedding`."""
    found = {} if hooks.layer_of(hook) is None else {"layer_0": f"{hooks.point_of(hook)}.0"}
    return {name: one for name, one in (found | {"embedding": "embed"}).items() if one != hook}


def run(context: Context) -> Results:
    """Gather the sessions' rows, and fit a probe to each hook."""
    spec = context.spec
    assert isinstance(spec, ProbeSpec)
    probing = Probing(context, spec)
    found: dict[str, ProbeResult] = {}
    reports: dict[str, Any] = {}
    for hook in probing.hooks:
        found[hook] = probing.fit(hook)
        context.working()
        reports[hook] = found[hook].as_json()
        if spec.transfer:
            reports[hook]["transfer"] = {
                job: probing.transfer(found[hook], hook, job) for job in spec.transfer
            }
            context.working()
    summary: dict[str, Any] = {
        "kind": "probe",
        "label": spec.label,
        "sessions": len(probing.rows),
        "skipped": probing.skipped,
        "not_captured": probing.not_captured,
        "hooks": reports,
    }
    if spec.store_as is not None:
        directions = {hook: _unit(one.direction.weights) for hook, one in found.items()}
        summary["vectors"] = store_vectors(context, spec.store_as, directions)
    return Results(
        summary=summary, files={"probes.csv": _table(summary)} | figures("probes", _figure(summary))
    )


def _unit(weights: Any) -> Any:
    return weights / (np.linalg.norm(weights) or 1)


def _table(summary: dict[str, Any]) -> bytes:
    rows = [
        [hook, job, name, *(one[key] for key in _SCORES)]
        for hook, result in summary["hooks"].items()
        for job, scored in (("", result), *result.get("transfer", {}).items())
        for name, one in (("probe", scored), *scored["baselines"].items())
    ]
    return table(["hook", "scored_on", "features", *_SCORES], rows)


def _figure(summary: dict[str, Any]) -> Any:
    """AUROC by hook, with intervals, and the baselines."""
    figure = new_figure(8, 3.5)
    axes = figure.subplots()
    hooks = summary["hooks"]
    names = list(dict.fromkeys(name for one in hooks.values() for name in one["baselines"]))
    for number, name in enumerate(["probe", *names]):
        series = [one if name == "probe" else one["baselines"].get(name) for one in hooks.values()]
        known = [(place, one) for place, one in enumerate(series) if one and one["auroc"] is not None]
        colour = OKABE_ITO[number % 8]
        style = "o-" if name == "probe" else "s--"
        places, areas = [place for place, _ in known], [one["auroc"] for _, one in known]
        axes.plot(places, areas, style, color=colour, label=name, ms=3)
        if name == "probe":
            low, high = ([one["auroc_interval"][side] for _, one in known] for side in (0, 1))
            axes.fill_between(places, low, high, color=colour, alpha=0.2)
    axes.set_xticks(range(len(hooks)), list(hooks), rotation=45, ha="right")
    axes.set(ylabel="AUROC", ylim=(0, 1.02))
    axes.legend(fontsize=7)
    return figure
