"""`actograph report`: jobs and analyses as one HTML file."""

import json
import shlex
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.cli.flags import identifiers
from actograph.cli.flags.options import client_of
from actograph.cli.output.output import emit, note
from actograph.contract.errors import InvalidDataset

if TYPE_CHECKING:
    from actograph.analysis.reports.job_report import JobParts
    from actograph.client import Client


def report(
    ctx: typer.Context,
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids of jobs.")],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.html", help="File to write.")] = Path(
        "report.html"
    ),
    analysis: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.json", help="Output of an analysis command (repeated); of `lens`, on jobs."
        ),
    ] = None,
) -> None:
    """Write a report of jobs: scores, comparisons, lengths, and the results of analyses.

    The HTML file needs no network. Its figures are also written as PNG and SVG, into a folder beside it.
    """
    from actograph.analysis.reports.job_report import build

    analyses = [_read(path) for path in analysis or ()]
    with closing(client_of(ctx)) as client:
        parts = [_parts(client, identifiers.job(client, one)) for one in jobs]
    words = ["actograph", "report", *(one.job.id for one in parts)]
    words += [word for path in analysis or () for word in ("--analysis", str(path))]
    built = build(parts, analyses, shlex.join([*words, "--out", str(out)]))
    folder = out.with_name(f"{out.stem}-figures")
    if built.figures:
        folder.mkdir(parents=True, exist_ok=True)
    for figure in built.figures:
        (folder / f"{figure.name}.svg").write_bytes(figure.svg)
        (folder / f"{figure.name}.png").write_bytes(figure.png)
    out.write_text(built.html, encoding="utf-8")
    emit(str(out))
    note(f"{len(built.figures)} figures as PNG and SVG in {folder}" if built.figures else "no figures")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidDataset(f"{path}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidDataset(f"{path}: not a JSON object")
    return found


def _parts(client: "Client", job_id: str) -> "JobParts":
    from actograph.analysis.reports.job_report import JobParts

    job, results = client.jobs.get(job_id), client.jobs.results(job_id)
    lengths: dict[str, list[int]] = defaultdict(list)
    for sample in client.jobs.samples(job_id, status="completed"):
        if sample.generated_tokens is not None:
            lengths[sample.condition or "all"].append(sample.generated_tokens)
    comparison = client.jobs.comparison(job_id) if len(results.conditions) > 1 else None
    return JobParts(job, results, comparison, lengths)
