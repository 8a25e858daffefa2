"""`actograph outliers`: outlier features of arrays in files, or of stored jobs."""

import json
import math
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from actograph.cli.analysis.sources import jobs_of
from actograph.cli.flags.options import client_of
from actograph.cli.output.output import emit


class Positions(StrEnum):
    """Readings of the share of positions."""

    UNION = "union"
    MEAN = "mean"


def outliers(
    ctx: typer.Context,
    sources: Annotated[
        list[str], typer.Argument(metavar="FILE|JOB...", help=".npz or .safetensors files, or job ids.")
    ],
    *,
    positions: Annotated[
        Positions, typer.Option(help="A position counts if any layer has it, or layers are averaged.")
    ] = Positions.UNION,
    threshold: Annotated[float, typer.Option(help="Least magnitude of an outlier value.")] = 6.0,
    layer_share: Annotated[float, typer.Option(min=0, max=1, help="Least share of layers.")] = 0.25,
    position_share: Annotated[float, typer.Option(min=0, max=1, help="Least share of positions.")] = 0.06,
    together: Annotated[
        bool, typer.Option("--together", help="Count all points of a layer together.")
    ] = False,
    massive_magnitude: Annotated[float, typer.Option(help="Massive activations are larger.")] = 100.0,
    massive_ratio: Annotated[float, typer.Option(help="Least multiple of the layer's median.")] = 1000.0,
) -> None:
    """Find outlier features and massive activations, and print them as JSON.

    A file has one array per layer, [positions, width] or [batch, sequence, width]; the first number of its
    name is the layer. Jobs are analysed by an analysis worker of the service, side by side.
    """
    options: dict[str, Any] = {
        "positions": positions.value,
        "threshold": threshold,
        "layer_share": layer_share,
        "position_share": position_share,
    }
    massive = {"massive_magnitude": massive_magnitude, "massive_ratio": massive_ratio}
    if jobs := jobs_of(ctx, sources):
        with closing(client_of(ctx)) as client:
            report = client.analysis.outliers(
                *jobs,
                progress=True,
                together=together,
                **options,
                **massive,
            )
        emit(json.dumps(report.summary))
        return
    found = {}
    for source in sources:
        found[source] = _of_file(Path(source), options, {"together": together} | massive)
    emit(json.dumps(found[sources[0]] if len(sources) == 1 else {"files": found}))


def _of_file(path: Path, rule: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    from actograph.analysis.outliers.arrays import outliers_of_arrays
    from actograph.analysis.outliers.features import OutlierRule
    from actograph.analysis.outliers.files import read_layers

    found: dict[str, Any] = _finite(outliers_of_arrays(read_layers(path), OutlierRule(**rule), **more))
    return found


def _finite(value: Any) -> Any:
    """JSON without NaN and infinity, which become null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
