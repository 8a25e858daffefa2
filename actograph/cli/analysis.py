"""`actograph analyse ...`: analyses of stored sessions as jobs, or of files."""

from collections.abc import Mapping, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from actograph.cli.flags import IdArgument, names
from actograph.cli.shell import Shell, command, emit, note, on_interrupt
from actograph.cli.tables import Columns, describe, table
from actograph.contract.errors import InvalidDataset, InvalidRequest
from actograph.short_texts import shorten

SourcesArgument = Annotated[
    list[str], typer.Argument(metavar="JOB|FILE", help="Ids of jobs, or one .npz or .safetensors file.")
]
Hooks = Annotated[
    list[str],
    typer.Option(help="Stored hooks, or points for all layers (commas or repeated). Default: all."),
]
Condition = Annotated[str | None, typer.Option(help="Read sessions of this condition.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Maximum number of sessions of each job.")]
Seed = Annotated[int, typer.Option(help="Seed of folds, shuffles and resamples.")]
SaveVectorAs = Annotated[
    str | None, typer.Option(metavar="NAME", help="Store each hook's direction as a vector.")
]
Reduce = Annotated[
    Literal["none", "mean", "max", "last"] | None,
    typer.Option(help="Reduce each session's rows to one. (default: none)"),
]
_SUFFIXES = (".npz", ".safetensors")

_EXAMPLES = {
    "outliers": (
        "actograph analyse outliers job_3fa2 --hooks resid_post",
        "actograph analyse outliers layers.safetensors",
    ),
    "probe": (
        "actograph analyse probe job_3fa2 --positions generated --reduce mean",
        "actograph analyse probe matrix.npz",
    ),
    "compare": (
        "actograph analyse compare job_3fa2 --condition plain --other-condition EP02 --hooks resid_post",
    ),
    "lens": (
        "actograph analyse lens job_3fa2 --positions generated",
        "actograph analyse lens job_3fa2 --limit 1 --token next",
    ),
}

app = typer.Typer(no_args_is_help=True, help="Analyse stored activations, as jobs or from files.")


@command(app, None, None, _EXAMPLES["outliers"])
def outliers(
    shell: Shell,
    sources: SourcesArgument,
    *,
    hooks: Hooks = [],  # noqa: B006 (typer copies it)
    positions: str | None = typer.Option(
        None, help="Tokens to read of jobs: generated, answer[-5:], 0,-1, ... (default: all)"
    ),
    condition: Condition = None,
    limit: Limit = None,
    position_reading: Literal["union", "mean"] = typer.Option(
        "union", help="A position counts if any layer has an outlier there, or layers are averaged."
    ),
    threshold: float = typer.Option(6.0, help="Least magnitude of an outlier value."),
    layer_share: float = typer.Option(0.25, min=0, max=1, help="Least share of layers."),
    position_share: float = typer.Option(0.06, min=0, max=1, help="Least share of positions."),
    together: bool = typer.Option(False, "--together", help="Count points of a layer together."),
    massive_magnitude: float = typer.Option(100.0, help="Massive activations are larger."),
    massive_ratio: float = typer.Option(1000.0, help="Least multiple of the layer's median."),
) -> None:
    """Find outlier features and massive activations in the sessions of jobs, or in a file.

    A file has one array per layer and point, [positions, width] or [batch, sequence, width]; the number
    after "layer", or the first one of its name, is the layer. A file of "jobs arrays" gives the numbers of
    the job. Its results are printed as JSON.
    """
    from actograph.analysis.outlier_features import OutlierRule
    from actograph.analysis.outliers import outliers_of_file

    massive = {"massive_magnitude": massive_magnitude, "massive_ratio": massive_ratio}
    rule = {"threshold": threshold, "layer_share": layer_share, "position_share": position_share}
    of_jobs = {"hooks": hooks, "positions": positions, "condition": condition, "limit": limit}
    if (file := _file(sources, of_jobs)) is not None:
        numbers = OutlierRule(**rule, positions=position_reading)
        _print(outliers_of_file(file, numbers, together=together, **massive))
        return
    fields = {"positions": positions, "position_reading": position_reading, "together": together}
    query = _query(shell, sources, condition, limit)
    _analyse(shell, "outliers", query, hooks, fields | rule | massive)


@command(app, None, None, _EXAMPLES["probe"])
def probe(
    shell: Shell,
    sources: SourcesArgument,
    *,
    hooks: Hooks = [],  # noqa: B006
    positions: str | None = typer.Option(
        None, help="Tokens to read of jobs: generated, answer[-5:], 0,-1, ... (default: last_prompt)"
    ),
    reduce: Reduce = None,
    condition: Condition = None,
    limit: Limit = None,
    label: str | None = typer.Option(
        None, help="Label of jobs: condition, or a metric key. (default: correct)"
    ),
    method: Literal["logistic", "ridge", "mean_difference"] = typer.Option("logistic", help="Kind of probe."),
    groups: str | None = typer.Option(
        None,
        metavar="sample|column:NAME",
        help="Rows of jobs that stay together in splits. (default: sample)",
    ),
    folds: int = typer.Option(5, min=2, help="Number of folds."),
    c: float | None = typer.Option(
        None, "--c", help="C of scikit-learn. (default: chosen by inner validation)"
    ),
    shuffles: int = typer.Option(19, min=0, help="Shuffles of the labels, for p-values."),
    seed: Seed = 0,
    save_vector_as: SaveVectorAs = None,
) -> None:
    """Fit and score linear probes on the sessions of jobs, or on a file, beside their baselines.

    A file has `features` [n, width] and `labels` [n] of two values; `groups` [n] (rows of one group stay
    on one side of each split; by default `sample_index`, which the matrix of a job has), `lengths` [n] and
    `texts` [n] are optional. Rows with the label NaN are left out. Its results are printed as JSON.
    """
    of_jobs = {
        "hooks": hooks, "positions": positions, "reduce": reduce, "condition": condition, "limit": limit,
        "label": label, "groups": groups, "save_vector_as": save_vector_as,
    }  # fmt: skip
    if (file := _file(sources, of_jobs)) is not None:
        _probe_file(file, kind=method, folds=folds, c=c, shuffles=shuffles, seed=seed)
        return
    fields = {
        "positions": positions, "reduce": reduce, "label": label, "method": method, "groups": groups,
        "folds": folds, "c": c, "shuffles": shuffles, "seed": seed, "save_vector_as": save_vector_as,
    }  # fmt: skip
    _analyse(shell, "probe", _query(shell, sources, condition, limit), hooks, fields)


@command(app, None, None, _EXAMPLES["compare"])
def compare(
    shell: Shell,
    job: IdArgument,
    other: Annotated[str | None, typer.Argument(metavar="OTHER", help="Another job. Default: JOB.")] = None,
    *,
    hooks: Hooks = [],  # noqa: B006
    positions: str | None = typer.Option(
        None, help="Tokens to read: generated, answer[-5:], 0,-1, ... (default: last_prompt)"
    ),
    reduce: Reduce = None,
    condition: Condition = None,
    other_condition: str | None = typer.Option(None, help="Condition of the other side."),
    limit: Limit = None,
    permutations: int = typer.Option(999, min=1, help="Permutations of the test."),
    seed: Seed = 0,
    save_vector_as: SaveVectorAs = None,
) -> None:
    """Compare the activations of two jobs or conditions problem by problem, hook by hook."""
    fields = {
        "other": _query(shell, [other or job], other_condition, limit), "positions": positions,
        "reduce": reduce, "permutations": permutations, "seed": seed, "save_vector_as": save_vector_as,
    }  # fmt: skip
    _analyse(shell, "compare", _query(shell, [job], condition, limit), hooks, fields)


@command(app, None, None, _EXAMPLES["lens"])
def lens(
    shell: Shell,
    jobs: Annotated[list[str], typer.Argument(metavar="JOB", help="Ids of jobs.")],
    *,
    hooks: Hooks = [],  # noqa: B006
    positions: str | None = typer.Option(
        None, help="Tokens to read: generated, last, or a segment. (default: all)"
    ),
    condition: Condition = None,
    limit: Limit = None,
    top: int = typer.Option(5, min=1, help="Tokens to list for each row."),
    listed: int = typer.Option(100, min=0, help="Rows of each hook to list in lens.csv, the first."),
    token: str | None = typer.Option(
        None, metavar="ID|next", help="Attribute the logit of this token id, or of the next token."
    ),
    against: int | None = typer.Option(None, help="Attribute the difference from this token's logit."),
) -> None:
    """Read stored residual rows as next tokens: the logit lens. Without --hooks: resid_post of all layers."""
    fields = {
        "positions": positions, "top": top, "listed": listed, "against": against,
        "token": int(token) if token is not None and token.isdecimal() else token,
    }  # fmt: skip
    _analyse(shell, "lens", _query(shell, jobs, condition, limit), hooks, fields)


def _file(sources: Sequence[str], of_jobs: Mapping[str, Any]) -> Path | None:
    """The file among the arguments; None if they are jobs.

    Raises:
        InvalidRequest: there is more than the file, or an option that only jobs have.
    """
    files = [Path(source) for source in sources if source.endswith(_SUFFIXES)]
    if files and len(sources) > 1:
        raise InvalidRequest("give one file, or ids of jobs")
    given = [name for name, value in of_jobs.items() if value not in (None, [])] if files else []
    if given:
        raise InvalidRequest(
            f"--{given[0].replace('_', '-')} is for the sessions of jobs; leave it out for a file"
        )
    if files and not files[0].is_file():
        raise InvalidDataset(f"{files[0]}: no such file")
    return files[0] if files else None


def _query(shell: Shell, jobs: Sequence[str], condition: str | None, limit: int | None) -> dict[str, Any]:
    found = [shell.id("job", job) for job in jobs]
    return {"jobs": found, "condition": condition, "limit": limit}


def _analyse(
    shell: Shell, kind: str, query: Mapping[str, Any], hooks: Sequence[str], fields: Mapping[str, Any]
) -> None:
    """Submit an analysis, follow it and print its results."""
    given = {name: value for name, value in fields.items() if value is not None}
    body = {"kind": kind, "sessions": query, "hooks": names(hooks), **given}
    job = shell.client.submit(body)
    note(f"job {job.id}")
    later = f"actograph jobs watch {shorten(job.id)}"
    with on_interrupt(f"job {job.id} continues; follow it with: {later}"):
        finished = shell.client.analysis.follow(job.id)
    shell.show(finished.result, _text)
    note(f"files: actograph sessions pull {shorten(finished.session.id)} --out .")


def _text(result: Any) -> str:
    """Describe a result: its numbers, then a table for each list and for the hooks."""
    lists = ("outlier_features", "massive_activations", "attribution")
    tables = {name: getattr(result, name, []) for name in lists}
    tables["hooks"] = [{"hook": hook} | _numbers(one) for hook, one in result.hooks.items()]
    experts = getattr(result, "experts", {})
    tables["experts"] = [{"layer": layer} | _numbers(use) for layer, use in experts.items()]
    parts = [describe(result, ["spec", "warnings", *tables])]
    parts += [f"warning: {warning}" for warning in getattr(result, "warnings", [])]
    for name, lines in tables.items():
        if lines:
            columns: Columns = [(column, methodcaller("get", column)) for column in lines[0]]
            parts.append(f"{name.replace('_', ' ')}\n{table(columns, lines)}")
    return "\n\n".join(parts)


def _numbers(found: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a hook, and those of a probe's lists that people look for first."""
    numbers = {name: value for name, value in found.items() if isinstance(value, int | float)}
    if "baselines" in found:
        low, high = found["auroc_interval"]
        baselines = {name: one["auroc"] for name, one in found["baselines"].items()}
        shown = ("auroc", "accuracy", "rows", "groups", "p_corrected")
        known = {name: numbers[name] for name in shown if name in numbers}
        return known | {"low": low, "high": high} | baselines
    return numbers


def _probe_file(file: Path, **options: Any) -> None:
    import numpy as np

    from actograph.analysis.files import read_arrays
    from actograph.contract.errors import package

    package("scikit-learn", "a probe", module="sklearn")
    from actograph.analysis.probe import probe as fit

    arrays = read_arrays(file)
    if missing := [name for name in ("features", "labels") if name not in arrays]:
        raise InvalidDataset(f"{file}: no array {missing[0]!r}; the file has {', '.join(arrays)}")
    if "groups" not in arrays and "sample_index" in arrays:  # a matrix of a job
        arrays["groups"] = arrays["sample_index"]
    labels = arrays["labels"]
    known = ~np.isnan(labels) if labels.dtype.kind == "f" else np.ones(len(labels), bool)
    if not known.all():
        note(f"{(~known).sum()} rows without a label are left out")
    given_names = ("features", "labels", "groups", "lengths", "texts")
    given: dict[str, Any] = {name: arrays[name][known] for name in given_names if name in arrays}
    _print(fit(**given, **options).as_json())


def _print(value: Any) -> None:
    """Print JSON; NaN and infinities, which it lacks, are null."""
    from pydantic_core import to_json

    emit(to_json(value, inf_nan_mode="null").decode())
