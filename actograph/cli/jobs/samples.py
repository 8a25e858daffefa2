"""`actograph jobs samples`: a job's samples with texts, verdicts and errors."""

import shutil
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from actograph.cli.flags import identifiers
from actograph.cli.flags.arguments import JobArgument
from actograph.cli.flags.options import AllOption, FormatOption, LimitOption, client_of
from actograph.cli.output import tables
from actograph.cli.output.output import Format, emit_list

if TYPE_CHECKING:
    from actograph.contract.resources import Sample

HEADERS = ("INDEX", "CONDITION", "EPOCH", "STATUS", "CORRECT", "TOKENS", "SESSION ID", "COMPLETION OR ERROR")
#: minimum width of a completion, however narrow the terminal is
_LEAST_TEXT = 20


def samples(
    ctx: typer.Context,
    job: JobArgument,
    *,
    status: Annotated[
        str | None,
        typer.Option(help="Samples of this status: pending, leased, completed, failed or cancelled."),
    ] = None,
    condition: Annotated[str | None, typer.Option(help="Samples of this condition.")] = None,
    correct: Annotated[
        bool | None, typer.Option("--correct/--incorrect", help="Verdict of the first scorer.")
    ] = None,
    limit: LimitOption = 20,
    everything: AllOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """List a job's samples: texts, verdicts and errors. JSON includes all fields."""
    with closing(client_of(ctx)) as client:
        found = client.jobs.samples(identifiers.job(client, job), status=status, condition=condition)
        matching = (sample for sample in found if correct is None or verdict(sample) is correct)
        table = partial(render, columns=shutil.get_terminal_size((120, 24)).columns)
        emit_list(matching, table, output, limit=None if everything else limit)


def render(samples: Sequence["Sample"], columns: int) -> str:
    """Render one line per sample; completions are cut at the width of the terminal."""
    rows = [_row(sample) for sample in samples]
    before = tables.render(HEADERS[:-1], rows).splitlines()[0]
    room = max(_LEAST_TEXT, columns - len(before) - len(tables.GAP))
    texts = [tables.cut(_text(sample), room) for sample in samples]
    return tables.render(
        HEADERS,
        [[*row, text] for row, text in zip(rows, texts, strict=True)],
        right=("INDEX", "EPOCH", "TOKENS"),
    )


def verdict(sample: "Sample") -> bool | None:
    """Return the first scorer's verdict; None if the sample has no score."""
    first = next(iter(sample.scores.values()), None)
    return None if first is None else first.value == 1.0


def _row(sample: "Sample") -> list[str]:
    return [
        str(sample.index),
        sample.condition or "",
        str(sample.epoch),
        str(sample.status),
        {None: "", True: "yes", False: "no"}[verdict(sample)],
        "" if sample.generated_tokens is None else str(sample.generated_tokens),
        tables.shorten(sample.session_id) if sample.session_id else "",
    ]


def _text(sample: "Sample") -> str:
    if sample.error is not None:
        return f"{sample.error.type}: {sample.error.message}"
    return sample.completion or ""
