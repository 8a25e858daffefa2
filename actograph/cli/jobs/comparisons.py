"""`actograph jobs compare`: conditions of a job on the same problems."""

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from actograph.cli.flags import identifiers
from actograph.cli.flags.arguments import JobArgument
from actograph.cli.flags.job_flags import names
from actograph.cli.flags.options import FormatOption, client_of
from actograph.cli.output.output import Format, emit
from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from actograph.contract.comparison import ActivationComparison, JobComparison


def compare(
    ctx: typer.Context,
    job: JobArgument,
    *,
    baseline: Annotated[str | None, typer.Option(help="Baseline condition. Default: the first.")] = None,
    level: Annotated[float, typer.Option(help="Coverage of the intervals.")] = 0.95,
    activations: Annotated[
        str | None,
        typer.Option(metavar="CONDITION", help="Compare this condition's activations with the baseline's."),
    ] = None,
    hooks: Annotated[
        list[str] | None, typer.Option(help="Hooks to compare (commas or repeated). Default: all.")
    ] = None,
    positions: Annotated[
        str, typer.Option(help="Tokens to average: all, generated, last, last_prompt, or a segment.")
    ] = "all",
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of pairs.")] = None,
    store_as: Annotated[
        str | None, typer.Option(metavar="NAME", help="Store the mean differences as vectors.")
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Compare a job's conditions problem by problem: scores and lengths, or activations."""
    from actograph.cli.output import comparison_tables

    with closing(client_of(ctx)) as client:
        job_id = identifiers.job(client, job)
        found: JobComparison | ActivationComparison
        if activations is None:
            if hooks or store_as or limit:
                raise InvalidRequest("--hooks, --limit and --store-as need --activations CONDITION")
            found = client.jobs.comparison(job_id, baseline=baseline, level=level)
            table = comparison_tables.render(found)
        else:
            found = client.jobs.compare_activations(
                job_id,
                activations,
                baseline=baseline,
                hooks=names(hooks or ()) or [],
                positions=positions,
                limit=limit,
                store_as=store_as,
            )
            table = comparison_tables.render_activations(found)
    emit(found.model_dump_json() if output is Format.JSON else table)
