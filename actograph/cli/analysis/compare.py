"""`actograph compare`: two files of rows, problem by problem."""

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from actograph.cli.analysis.sources import jobs_of, one_file, refuse_files_only
from actograph.cli.flags.options import client_of
from actograph.cli.output.output import emit, note

_PROBLEMS = "problems"


def compare(
    ctx: typer.Context,
    first: Annotated[str, typer.Argument(metavar="FIRST", help="The baseline: an .npz file or a job.")],
    second: Annotated[
        str, typer.Argument(metavar="SECOND", help="An .npz file or a job to compare with it.")
    ],
    *,
    hook: Annotated[
        list[str] | None, typer.Option(help="Hooks to compare (repeated). Default: all common ones.")
    ] = None,
    permutations: Annotated[int, typer.Option(min=1, help="Permutations behind the p-value.")] = 999,
    top: Annotated[int, typer.Option(min=0, help="Number of features to list per hook.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the permutations.")] = 0,
    vectors: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Write the mean differences here.")
    ] = None,
) -> None:
    """Compare two files or two jobs by problem and print cosines, norms, CKA and tests as JSON.

    Sessions of jobs are read by an analysis worker of the service, each session as one row. Both files have
    `problems` [n] and one array [n, width] per hook.
    """
    if jobs := jobs_of(ctx, [first, second]):
        refuse_files_only(vectors=vectors)
        with closing(client_of(ctx)) as client:
            report = client.analysis.compare(
                *jobs, progress=True, permutations=permutations, top=top, seed=seed, hooks=hook or []
            )
        emit(json.dumps(report.summary))
        return
    _compare_files(
        one_file([first]), one_file([second]), hook, vectors, permutations=permutations, top=top, seed=seed
    )


def _compare_files(
    first: Path,
    second: Path,
    hook: list[str] | None,
    vectors: Path | None,
    *,
    permutations: int,
    top: int,
    seed: int,
) -> None:
    """Print the comparison of two files."""
    import numpy as np

    from actograph.analysis.comparisons.paired_rows import compare_rows
    from actograph.analysis.row_files import chosen_hooks, open_arrays, read_array

    found: dict[str, Any] = {}
    differences: dict[str, Any] = {}
    with open_arrays(first) as one, open_arrays(second) as other:
        of_first, of_second = read_array(first, one, _PROBLEMS), read_array(second, other, _PROBLEMS)
        common = [name for name in one if name in other and name != _PROBLEMS]
        for name in chosen_hooks(common, hook, second):
            result = compare_rows(
                read_array(first, one, name),
                read_array(second, other, name),
                of_first,
                of_second,
                permutations=permutations,
                top=top,
                seed=seed,
            )
            found[name] = result.as_json()
            differences[name] = result.mean_difference
            note(f"{name}: {result.pairs} pairs, norm {result.difference_norm:.4g}, p {result.p_value:.3g}")
    if vectors is not None:
        with vectors.open("wb") as target:
            np.savez(target, **differences)
    emit(json.dumps({"hooks": found}))
