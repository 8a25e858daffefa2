"""`actograph outliers` and `actograph probe`: analyses of arrays in files, as JSON on stdout."""

import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from actograph.cli.output import emit, note
from actograph.contract.errors import InvalidDataset

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False)]


def outliers(
    file: FileArgument,
    *,
    positions: Annotated[
        Literal["union", "mean"],
        typer.Option(help="A position counts if any layer has it there, or layers are averaged."),
    ] = "union",
    threshold: Annotated[float, typer.Option(help="Least magnitude of an outlier value.")] = 6.0,
    layer_share: Annotated[float, typer.Option(min=0, max=1, help="Least share of layers.")] = 0.25,
    position_share: Annotated[float, typer.Option(min=0, max=1, help="Least share of positions.")] = 0.06,
    together: Annotated[bool, typer.Option("--together", help="Count points of a layer together.")] = False,
    massive_magnitude: Annotated[float, typer.Option(help="Massive activations are larger.")] = 100.0,
    massive_ratio: Annotated[float, typer.Option(help="Least multiple of the layer's median.")] = 1000.0,
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
    found = outliers_of_arrays(
        read_arrays(file), rule, together=together,
        massive_magnitude=massive_magnitude, massive_ratio=massive_ratio,
    )  # fmt: skip
    _print(found)


def probe(
    file: FileArgument,
    *,
    kind: Annotated[
        Literal["logistic", "ridge", "mean_difference"], typer.Option(help="Kind of probe.")
    ] = "logistic",
    folds: Annotated[int, typer.Option(min=2, help="Number of folds.")] = 5,
    c: Annotated[
        float | None, typer.Option("--c", help="C of scikit-learn. (default: chosen by inner validation)")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of folds, shuffles and resamples.")] = 0,
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
    emit(json.dumps(_finite(value), allow_nan=False))


def _finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON lacks, by null."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
