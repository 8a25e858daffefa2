"""`actograph analyse ...`: analyses of stored sessions as jobs, or of files."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from actograph.cli.flags import IdArgument, names
from actograph.cli.shell import Shell, command, emit, note, on_interrupt
from actograph.cli.vectors import note_saved
from actograph.contract.errors import InvalidDataset, InvalidRequest
from actograph.short_texts import shorten

SourcesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB|SESSION|FILE",
        help="Ids of jobs or sessions, or one .npz or .safetensors file, or a folder of them.",
    ),
]
C = TypeVar("C", bound=Callable[..., None])
JobsArgument = Annotated[list[str], typer.Argument(metavar="JOB|SESSION", help="Ids of jobs or sessions.")]
_SUFFIXES = (".npz", ".safetensors")


def _flag(of: Any, about: str, *names: str, **more: Any) -> Any:
    return Annotated[of | None, typer.Option(*names, help=about, **more)]


_POSITIONS = "Tokens to read: generated, answer[-5:], 0,-1, ... (default: "
#: which sessions and hooks are read
_OF_JOBS = {
    "hooks": _flag(list[str], "Hooks, or points for all layers (commas or repeated). Default: all stored."),
    "condition": _flag(str, "Read sessions of this condition."),
    "limit": _flag(int, "Maximum number of sessions of each job.", min=1),
}
#: of analyses of a matrix of rows
_OF_ROWS = {
    "positions": _flag(str, f"{_POSITIONS}last_prompt)"),
    "reduce": _flag(Literal["none", "mean", "max", "last"], "Reduce each session's rows. (default: none)"),
    "seed": _flag(int, "Seed of folds, shuffles and resamples. (default: 0)"),
    "save_as": _flag(str, "Store each hook's direction as a vector.", metavar="NAME"),
}
_GROUPS = "sample|group|column:NAME"
_READING = "union: any layer has an outlier at the position. mean: average over layers. (default: union)"
_METHODS = Literal["logistic", "ridge", "mean_difference"]
#: analysis -> flags, which are fields of its spec
_FLAGS = {
    "outliers": {
        "positions": _flag(str, f"{_POSITIONS}all)"),
        "position_reading": _flag(Literal["union", "mean"], _READING),
        "threshold": _flag(float, "Least magnitude of an outlier value. (default: 6)"),
        "layer_share": _flag(float, "Least share of layers. (default: 0.25)", min=0, max=1),
        "position_share": _flag(float, "Least share of positions. (default: 0.06)", min=0, max=1),
        "together": _flag(bool, "Count points of a layer together.", "--together"),
        "massive_magnitude": _flag(float, "Massive activations are larger. (default: 100)"),
        "massive_ratio": _flag(float, "Least multiple of the layer's median. (default: 1000)"),
    },
    "probe": {
        **_OF_ROWS,
        "label": _flag(
            str, "condition, label or group of the inputs, column:NAME, or a metric key. (default: correct)"
        ),
        "method": _flag(_METHODS, "Kind of probe. (default: logistic)"),
        "groups": _flag(str, "Rows that stay together in splits. (default: sample)", metavar=_GROUPS),
        "folds": _flag(int, "Number of folds. (default: 5)", min=2),
        "c": _flag(float, "C of scikit-learn. (default: chosen by inner validation)", "--c"),
        "shuffles": _flag(int, "Shuffles of the labels, for p-values. (default: 19)", min=0),
    },
    "compare": {
        **_OF_ROWS,
        "groups": _flag(str, "Rows that are compared with each other. (default: sample)", metavar=_GROUPS),
        "label": _flag(str, "Compare the two values of this label, instead of OTHER.", metavar="LABEL"),
        "paired": _flag(bool, "Compare problem by problem, or two independent sets.", "--paired/--unpaired"),
        "permutations": _flag(int, "Permutations of the test. (default: 999)", min=1),
        "other_condition": _flag(str, "Condition of the other side."),
    },
    "lens": {
        "positions": _flag(str, f"{_POSITIONS}all)"),
        "top": _flag(int, "Tokens to list for each row. (default: 5)", min=1),
        "listed": _flag(int, "First rows of each hook to list in lens.csv. (default: 100)", min=0),
        "token": _flag(str, "Attribute the logit of this token, or of the next one.", metavar="ID|TEXT|next"),
        "against": _flag(str, "Attribute the difference from this token's logit.", metavar="ID|TEXT"),
    },
}
_EXAMPLES = {
    "outliers": ("outliers job_3fa2 --hooks resid_post", "outliers layers.safetensors", "outliers run-1/"),
    "probe": ("probe job_3fa2 --positions generated --reduce mean", "probe matrix.npz"),
    "compare": (
        "compare job_3fa2 --label label --unpaired --hooks resid_post --save-as truth",
        "compare job_3fa2 --condition plain --other-condition EP02 --hooks resid_post",
    ),
    "lens": (
        "lens ses_3760",
        "lens job_3fa2 --positions generated",
        "lens job_3fa2 --limit 1 --token ' Paris' --against ' Rome'",
    ),
}

app = typer.Typer(no_args_is_help=True, help="Analyse stored activations, as jobs or from files.")


def _command(function: C) -> C:
    """Register an analysis with its flags."""
    kind = function.__name__
    return command(
        app, kind, _OF_JOBS | _FLAGS[kind], [f"actograph analyse {one}" for one in _EXAMPLES[kind]]
    )(function)


@_command
def outliers(shell: Shell, sources: SourcesArgument, **given: Any) -> None:
    """Find outlier features and massive activations in the sessions of jobs, a file or a folder of files.

    A file has one array per layer and point, [positions, width] or [batch, sequence, width]. The layer is the
    number after "layer" in an array's name, or the first number of the name. A file of "jobs arrays" gives
    the numbers of the job. For files, the results are JSON.
    """
    given = _typed(given)
    if (file := _file(sources, given, "positions")) is None:
        _analyse(shell, "outliers", sources, given)
        return
    from actograph.analysis.outlier_features import OutlierRule
    from actograph.analysis.outliers import outliers_of_file

    rule = {
        {"position_reading": "positions"}.get(name, name): given.pop(name)
        for name in ("threshold", "layer_share", "position_share", "position_reading")
        if name in given
    }
    _print(outliers_of_file(file, OutlierRule(**rule), **given))


@_command
def probe(shell: Shell, sources: SourcesArgument, **given: Any) -> None:
    """Fit and score linear probes on the sessions of jobs, or on a file, beside their baselines.

    A file has `features` [n, width] and `labels` [n] of two values, or of numbers with --method ridge;
    `groups` [n] (rows of one group stay on one side of each split), `lengths` [n] and `texts` [n] are
    optional. Skips rows with the label NaN or "". For files, the results are JSON.
    """
    given = _typed(given)
    if (file := _file(sources, given, "positions", "reduce", "label", "groups", "save_as")) is None:
        _analyse(shell, "probe", sources, given)
    else:
        _probe_file(file, kind=given.pop("method", "logistic"), **given)


@_command
def compare(
    shell: Shell,
    job: IdArgument,
    other: Annotated[str | None, typer.Argument(metavar="OTHER", help="Another job. Default: JOB.")] = None,
    **given: Any,
) -> None:
    """Compare the activations of two jobs, conditions or labels, hook by hook."""
    given = _typed(given)
    if "label" in given:
        if other is not None or "other_condition" in given:
            raise InvalidRequest("--label compares its two values; leave OTHER and --other-condition out")
        _analyse(shell, "compare", [job], given)
        return
    side = {"condition": given.pop("other_condition", None), "limit": given.get("limit")}
    given["other"] = side | _named(shell, [other or job])
    _analyse(shell, "compare", [job], given)


@_command
def lens(shell: Shell, jobs: JobsArgument, **given: Any) -> None:
    """Decode stored residual rows into next tokens: the logit lens. Default: resid_post of all layers.

    The grid shows the top tokens of the first session, by layer and position.
    """
    given = _typed(given)
    for name in ("token", "against"):
        if str(given.get(name, "")).isdecimal():
            given[name] = int(given[name])
    _analyse(shell, "lens", jobs, given)


def _named(shell: Shell, typed: Sequence[str]) -> dict[str, Any]:
    """The query of jobs, or of sessions. Raises InvalidRequest for a mixture."""
    sessions = [one for one in typed if one.startswith("ses_")]
    if sessions and len(sessions) < len(typed):
        raise InvalidRequest("name jobs or sessions, not both")
    return {"ids": sessions} if sessions else {"jobs": [shell.id("job", one) for one in typed]}


def _typed(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value not in (None, [])}


def _file(sources: Sequence[str], given: Mapping[str, Any], *of_jobs: str) -> Path | None:
    """The file among the arguments; None if they are jobs.

    Raises:
        InvalidRequest: there is more than the file, or an option that only jobs have.
    """
    files = [Path(one) for one in sources if one.endswith(_SUFFIXES) or Path(one).is_dir()]
    if files and len(sources) > 1:
        raise InvalidRequest("give one file, or ids of jobs")
    unused = [name for name in (*_OF_JOBS, *of_jobs) if name in given] if files else []
    if unused:
        raise InvalidRequest(
            f"--{unused[0].replace('_', '-')} is for the sessions of jobs; leave it out for a file"
        )
    if files and not files[0].exists():
        raise InvalidDataset(f"{files[0]}: no such file")
    return files[0] if files else None


def _analyse(shell: Shell, kind: str, jobs: Sequence[str], given: Mapping[str, Any]) -> None:
    """Submit an analysis, follow it and print its results."""
    fields = {name: value for name, value in given.items() if name not in _OF_JOBS}
    query: dict[str, Any] = _named(shell, jobs)
    query |= {name: given[name] for name in ("condition", "limit") if name in given}
    body = {"kind": kind, "sessions": query, "hooks": names(given.get("hooks", [])), **fields}
    job = shell.client.submit(body)
    note(f"job {job.id}")
    later = f"actograph jobs watch {shorten(job.id)}"
    with on_interrupt(f"job {job.id} continues; follow it with: {later}"):
        finished = shell.client.analysis.follow(job.id)
    shell.show(finished.result)
    if "save_as" in given:
        saved = shell.client.vectors.list(name=given["save_as"])
        of_job = {one.hook: one.id for one in saved if one.metadata.get("job_id") == job.id}
        note_saved(shell, given["save_as"], of_job)
    note(f"files: actograph sessions download {shorten(finished.session.id)} --out .")


def _probe_file(file: Path, *, kind: Any, **options: Any) -> None:
    import numpy as np

    from actograph.analysis.files import read_arrays
    from actograph.contract.errors import package

    package("scikit-learn", "a probe", module="sklearn")
    from actograph.analysis.probe import probe as fit
    from actograph.analysis.probe_labels import predicts
    from actograph.analysis.regression import regression

    arrays = read_arrays(file)
    if missing := [name for name in ("features", "labels") if name not in arrays]:
        raise InvalidDataset(f"{file}: no array {missing[0]!r}; the file has {', '.join(arrays)}")
    labels = arrays["labels"]
    known = ~np.isnan(labels) if labels.dtype.kind == "f" else labels != ""
    if not known.all():
        note(f"{(~known).sum()} rows without a label are left out")
    given_names = ("features", "labels", "groups", "lengths", "texts")
    given: dict[str, Any] = {name: arrays[name][known] for name in given_names if name in arrays}
    if predicts(given["labels"], kind) == "numbers":
        _print(regression(**given, **options).as_json())
    else:
        _print(fit(**given, kind=kind, **options).as_json())


def _print(value: Any) -> None:
    """Print JSON; NaN and infinities, which it lacks, are null."""
    from pydantic_core import to_json

    emit(to_json(value, inf_nan_mode="null").decode())
