"""`actograph probe`: a linear probe on features and labels in a file."""

import json
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.cli.analysis.sources import jobs_of, one_file, refuse_files_only, refuse_jobs_only
from actograph.cli.flags import identifiers
from actograph.cli.flags.options import client_of
from actograph.cli.output.output import emit, note

if TYPE_CHECKING:
    from actograph.analysis.probes.files import ProbeFile
    from actograph.analysis.probes.probe import ProbeOptions, ProbeResult


class Kind(StrEnum):
    """Kinds of probes."""

    LOGISTIC = "logistic"
    RIDGE = "ridge"
    MEAN_DIFFERENCE = "mean_difference"


LabelFlag = Annotated[
    str,
    typer.Option(
        help="Jobs: `correct`, `condition`, `job`, `answer_parity`, `target_parity`, a metric key, or a "
        "field of the samples' input."
    ),
]
LabelsFlag = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.csv",
        help="Jobs: upload this file, whose column `--label` has the labels by `sample_index` or "
        "`sample_id`.",
    ),
]
AboveFlag = Annotated[
    float | None, typer.Option(help="Jobs: split numbers into those above this one and the others.")
]


def probe(
    ctx: typer.Context,
    sources: Annotated[list[str], typer.Argument(metavar="FILE|JOB...", help="One .npz file, or job ids.")],
    *,
    kind: Annotated[Kind, typer.Option(help="Kind of probe.")] = Kind.LOGISTIC,
    hook: Annotated[
        list[str] | None, typer.Option(help="Hooks `features.HOOK` to probe (repeated). Default: all.")
    ] = None,
    folds: Annotated[int, typer.Option(min=2, help="Number of folds.")] = 5,
    c: Annotated[
        float | None, typer.Option("--c", help="C of scikit-learn. Default: chosen by inner validation.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of folds, resamples and shuffles.")] = 0,
    resamples: Annotated[int, typer.Option(min=1, help="Resamples behind each interval.")] = 1000,
    shuffles: Annotated[int, typer.Option(min=0, help="Runs on shuffled labels; 0 runs no controls.")] = 5,
    transfer: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE.npz|JOB", help="Also score the probe on these rows. Repeat for jobs."),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Write the directions and biases here.")
    ] = None,
    label: LabelFlag = "correct",
    labels: LabelsFlag = None,
    above: AboveFlag = None,
    store_as: Annotated[
        str | None, typer.Option(metavar="NAME", help="Jobs: store the directions as vectors.")
    ] = None,
) -> None:
    """Fit a linear probe by grouped cross-validation, and print its scores beside baselines as JSON.

    Sessions of jobs are read by an analysis worker, each session as one row. A file has `features` [n,
    width] or `features.HOOK` for several hooks, and `labels` [n]. Optional: `groups`, `lengths`, `texts`,
    `types` [n], and features `layer_0` and `embedding` as baselines.
    """
    from actograph.analysis.probes.probe import ProbeOptions

    if jobs := jobs_of(ctx, sources):
        refuse_files_only(weights=weights)
        fields: dict[str, Any] = {"probe": kind.value, "folds": folds, "c": c, "seed": seed}
        fields |= {"resamples": resamples, "shuffles": shuffles, "hooks": hook or []}
        fields |= {"label": label, "above": above, "store_as": store_as}
        with closing(client_of(ctx)) as client:
            fields["transfer"] = [identifiers.job(client, job) for job in transfer or ()]
            if labels is not None:
                fields["labels"] = {"file_id": client.files.upload(labels).id}
            report = client.analysis.probe(*jobs, progress=True, **fields)
        emit(json.dumps(report.summary))
        return
    options = ProbeOptions(
        kind=kind.value, folds=folds, c=c, seed=seed, resamples=resamples, shuffles=shuffles
    )
    refuse_jobs_only(labels=labels, above=above)
    others = [one_file(transfer)] if transfer else []
    _probe_file(one_file(sources), hook, options, transfer=others, weights=weights)


def _probe_file(
    file: Path,
    hook: list[str] | None,
    options: "ProbeOptions",
    *,
    transfer: list[Path],
    weights: Path | None,
) -> None:
    """Print the probes of one file."""
    from actograph.analysis.probes.files import open_probe_file
    from actograph.analysis.row_files import chosen_hooks

    found: dict[str, dict[str, Any]] = {}
    directions: dict[str, Any] = {}
    with open_probe_file(file) as source:
        for name in chosen_hooks(source.hooks, hook, file):
            result = _probe_one(source, name, options)
            found[name] = result.as_json()
            for other in transfer:
                found[name]["transfer"] = _transfer(other, name, result)
            directions[f"weights.{name}"] = result.direction.weights
            directions[f"bias.{name}"] = result.direction.bias
            note(f"{name}: AUROC {_shown(result.scores.auroc)}, accuracy {result.scores.accuracy:.3f}")
    if weights is not None:
        import numpy as np

        with weights.open("wb") as target:
            np.savez(target, **directions)
    emit(json.dumps(found[name] if len(found) == 1 else {"hooks": found}))


def _probe_one(source: "ProbeFile", hook: str, options: "ProbeOptions") -> "ProbeResult":
    from actograph.analysis.probes.probe import probe

    per_row = source.per_row()
    texts = per_row.pop("texts", None)
    return probe(
        source.features(hook),
        source.read("labels"),
        options=options,
        texts=None if texts is None else [str(text) for text in texts.tolist()],
        others=source.baselines(),
        groups=per_row.get("groups"),
        lengths=per_row.get("lengths"),
        types=per_row.get("types"),
    )


def _transfer(path: Path, hook: str, result: "ProbeResult") -> dict[str, Any]:
    from actograph.analysis.probes.files import open_probe_file
    from actograph.analysis.probes.probe import transfer

    with open_probe_file(path) as other:
        groups = other.per_row().get("groups")
        return transfer(result, other.features(hook), other.read("labels"), groups).as_json()


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
