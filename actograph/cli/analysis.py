"""`actograph outliers` and `actograph probe`: analyses of arrays in files, as JSON on stdout."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from actograph.cli.shell import Shell, emit, note
from actograph.contract.errors import InvalidDataset

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False)]


def outliers(
    _: Shell,
    file: FileArgument,
    *,
    positions: Literal["union", "mean"] = typer.Option(
        "union", help="A position counts if any layer has it there, or layers are averaged."
    ),
    threshold: float = typer.Option(6.0, help="Least magnitude of an outlier value."),
    layer_share: float = typer.Option(0.25, min=0, max=1, help="Least share of layers."),
    position_share: float = typer.Option(0.06, min=0, max=1, help="Least share of positions."),
    together: bool = typer.Option(False, "--together", help="Count points of a layer together."),
    massive_magnitude: float = typer.Option(100.0, help="Massive activations are larger."),
    massive_ratio: float = typer.Option(1000.0, help="Least multiple of the layer's median."),
) -> None:
    """Find outlier features and massive activations in a .npz or .safetensors file.

    The file has one array per layer and point, [positions, width] or [batch, sequence, width]; the first
    number of its name is the layer.
    """
    from actograph.analysis.files import read_arrays
    from actograph.analysis.outlier_features import OutlierRule
    from actograph.analysis.outliers import outliers_of_arrays

    rule = OutlierRule(
        threshold=threshold, layer_share=layer_share, position_share=position_share, positions=positions
    )
    massive = {"massive_magnitude": massive_magnitude, "massive_ratio": massive_ratio}
    _print(outliers_of_arrays(read_arrays(file), rule, together=together, **massive))


def probe(
    _: Shell,
    file: FileArgument,
    *,
    kind: Literal["logistic", "ridge", "mean_difference"] = typer.Option("logistic", help="Kind of probe."),
    folds: int = typer.Option(5, min=2, help="Number of folds."),
    c: float | None = typer.Option(
        None, "--c", help="C of scikit-learn. (default: chosen by inner validation)"
    ),
    seed: int = typer.Option(0, help="Seed of folds, shuffles and resamples."),
) -> None:
    """Fit and score a linear probe on a .npz or .safetensors file, beside its baselines.

    The file has `features` [n, width] and `labels` [n] of two values; `groups` [n] (rows of one group stay
    on one side of each split), `lengths` [n] and `texts` [n] are optional. Rows with the label NaN are left
    out.
    """
    import numpy as np

    from actograph.analysis.files import read_arrays
    from actograph.client.errors import package

    package("scikit-learn", "a probe", module="sklearn")
    from actograph.analysis.probe import probe as fit

    arrays = read_arrays(file)
    if missing := [name for name in ("features", "labels") if name not in arrays]:
        raise InvalidDataset(f"{file}: no array {missing[0]!r}; the file has {', '.join(arrays)}")
    labels = arrays["labels"]
    known = ~np.isnan(labels) if labels.dtype.kind == "f" else np.ones(len(labels), bool)
    if not known.all():
        note(f"{(~known).sum()} rows without a label are left out")
    names = ("features", "labels", "groups", "lengths", "texts")
    given: dict[str, Any] = {name: arrays[name][known] for name in names if name in arrays}
    _print(fit(**given, kind=kind, folds=folds, c=c, seed=seed).as_json())


def _print(value: Any) -> None:
    """Print JSON; NaN and infinities, which it lacks, are null."""
    from pydantic_core import to_json

    emit(to_json(value, inf_nan_mode="null").decode())
