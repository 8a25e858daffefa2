"""`actograph jobs compare`: conditions of a job on the same problems."""

from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.cli.flags.options import FormatOption, MixedIdentitiesOption, client_of
from actograph.cli.jobs import jobs
from actograph.cli.output import tables
from actograph.cli.output.output import Format, emit
from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from actograph.contract.comparison import ActivationComparison, JobComparison, PairedDifference

HEADERS = ("Condition", "Metric", "Pairs", "Baseline", "Value", "Difference", "Interval", "McNemar p")
ACTIVATION_HEADERS = ("Hook", "Pairs", "Baseline", "Value", "Difference", "Cosine", "Consistency", "Vector")
_WORDS = ("Condition", "Metric", "Interval", "Hook", "Vector")


def compare(
    ctx: typer.Context,
    job: jobs.JobArgument,
    *,
    baseline: Annotated[str | None, typer.Option(help="Default: the job's first condition.")] = None,
    level: Annotated[float, typer.Option(help="Coverage of the intervals.")] = 0.95,
    activations: Annotated[
        str | None,
        typer.Option(metavar="CONDITION", help="Compare this condition's activations with the baseline's."),
    ] = None,
    hooks: Annotated[
        list[str] | None, typer.Option(help="Hooks to compare (commas or repeated). Default: all.")
    ] = None,
    rows: Annotated[
        str, typer.Option(help="Tokens to average: all, generated, last, last_prompt, or a segment.")
    ] = "all",
    limit: Annotated[int | None, typer.Option(min=1, help="Most pairs to read.")] = None,
    store_as: Annotated[
        str | None, typer.Option(metavar="NAME", help="Store the mean differences as vectors of this name.")
    ] = None,
    mixed_identities: MixedIdentitiesOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Compare a job's conditions problem by problem: scores and lengths, or activations."""
    with closing(client_of(ctx)) as client:
        found: JobComparison | ActivationComparison
        if activations is None:
            if hooks or store_as or limit:
                raise InvalidRequest("--hooks, --limit and --store-as need --activations CONDITION")
            found = client.jobs.comparison(
                jobs.resolve(client, job), baseline=baseline, level=level, mixed_identities=mixed_identities
            )
            table = render(found)
        else:
            wanted = _request(
                {
                    "baseline": baseline,
                    "condition": activations,
                    "hooks": [name for text in hooks or () for name in text.split(",") if name],
                    "rows": rows,
                    "limit": limit,
                    "store_as": store_as,
                    "mixed_identities": mixed_identities,
                }
            )
            options = wanted.model_dump(exclude={"condition"})
            found = client.jobs.compare_activations(jobs.resolve(client, job), activations, **options)
            table = render_activations(found)
    emit(found.model_dump_json() if output is Format.JSON else table)


def _request(fields: Mapping[str, Any]) -> Any:
    from pydantic import ValidationError

    from actograph.contract.comparison import ActivationComparisonRequest

    try:
        return ActivationComparisonRequest.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidRequest(f"--{str(first['loc'][0]).replace('_', '-')}: {first['msg']}") from None


def render(found: "JobComparison") -> str:
    """One row per condition and measure."""
    rows = []
    for name, condition in found.conditions.items():
        for key, metric in condition.metrics.items():
            p = "" if metric.mcnemar_p is None else f"{metric.mcnemar_p:.4g}"
            rows.append([name, key, *_figures(metric, 4), p])
        rows.append([name, "prompt_tokens", *_figures(condition.prompt_tokens, 1), ""])
        rows.append([name, "generated_tokens", *_figures(condition.generated_tokens, 1), ""])
    right = [header for header in HEADERS if header not in _WORDS]
    return f"baseline: {found.baseline}\n\n{tables.render(HEADERS, rows, right=right)}"


def _figures(found: "PairedDifference", digits: int) -> list[str]:
    if found.baseline is None or found.condition is None or found.difference is None:
        return [str(found.pairs), "N/A", "N/A", "N/A", "N/A"]
    bounds = (
        "N/A"
        if found.low is None or found.high is None
        else f"{found.low:+.{digits}f} to {found.high:+.{digits}f}"
    )
    means = [
        f"{found.baseline:.{digits}f}",
        f"{found.condition:.{digits}f}",
        f"{found.difference:+.{digits}f}",
    ]
    return [str(found.pairs), *means, bounds]


def render_activations(found: "ActivationComparison") -> str:
    """One row per hook: norms of the means, of their difference, and the vector where one was stored."""
    rows = []
    for hook, difference in found.hooks.items():
        norms = [difference.baseline_norm, difference.condition_norm, difference.difference_norm]
        cosines = [difference.cosine_similarity, difference.consistency]
        rows.append(
            [
                hook,
                str(difference.pairs),
                *(f"{norm:.4g}" for norm in norms),
                *("N/A" if cosine is None else f"{cosine:.4f}" for cosine in cosines),
                difference.vector_id or "",
            ]
        )
    head = f"{found.condition} - {found.baseline}, rows: {found.rows}, {found.pairs} pairs"
    skipped = f" ({found.skipped} without such rows)" if found.skipped else ""
    right = [header for header in ACTIVATION_HEADERS if header not in _WORDS]
    return f"{head}{skipped}\n\n{tables.render(ACTIVATION_HEADERS, rows, right=right)}"
