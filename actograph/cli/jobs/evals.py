"""`actograph eval`: run a task, score recorded completions, rescore a job."""

import os
import shutil
import sys
import tempfile
from contextlib import closing, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.cli.flags import identifiers
from actograph.cli.flags.add_flags import add_flags
from actograph.cli.flags.arguments import JobArgument
from actograph.cli.flags.job_flags import job_options
from actograph.cli.flags.options import FormatOption, client_of
from actograph.cli.flags.scorer_flags import ScorerOption, parse_scorers
from actograph.cli.jobs import jobs
from actograph.cli.output import tables
from actograph.cli.output.output import Format, emit, note
from actograph.contract.errors import InvalidDataset, InvalidRequest

if TYPE_CHECKING:
    from actograph.statistics.metrics import Tally


class _RunByDefault(typer.core.TyperGroup):
    """`actograph eval TASK` is `actograph eval run TASK`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunByDefault,
    no_args_is_help=True,
    help="Run a task (`eval TASK`), rescore a job, or score recorded completions.",
)

#: flags of `jobs submit` for other kinds of jobs
_OTHER_KINDS = ("prompt", "text_field", "truncate", "mode")

HEADERS = ("SCORER", "ACCURACY", "STDERR", "UNPARSED", "COMPLETIONS")


class Form(StrEnum):
    """Answer format of a task."""

    GSM8K = "gsm8k"
    GSM8K_COT = "gsm8k_cot"


@app.command()
@add_flags(job_options(without=("spec", "kind", "task", *_OTHER_KINDS)))
def run(
    ctx: typer.Context,
    task: Annotated[str, typer.Argument(metavar="TASK|TASK.yaml", help="Name of a task, or a YAML file.")],
    *,
    watch: Annotated[bool, typer.Option("--watch/--no-watch", help="Follow the job to its end.")] = True,
    output: FormatOption = Format.TABLE,
    **flags: Any,
) -> None:
    """Run a task and print its scores: the name of a task, or a YAML file.

    With two or more conditions, a comparison with the first one follows. Built-in tasks read their rows
    from the Hugging Face Hub unless --dataset is given.
    """
    jobs.submit(ctx, task=task, kind="evaluation", watch=watch, output=output, **flags)


@app.command()
def score(
    file: Annotated[str, typer.Argument(metavar="FILE.jsonl|-", help="Completions; - reads standard input.")],
    *,
    scorer: ScorerOption = None,
    form: Annotated[
        Form, typer.Option(help="Answer format for strict-match: `#### N`, or `The answer is N.`")
    ] = Form.GSM8K,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write instead of standard output.")
    ] = None,
) -> None:
    """Score recorded completions without a service.

    Lines {"id", "completion", "gold"} become lines {"id", "scores": {scorer: {"answer", "correct"}}}.
    An invalid line is an error, and nothing is written. Ids may repeat.
    """
    from actograph.scoring.recorded import RecordedScores
    from actograph.scoring.scorers import GSM8K_SCORERS, ScorerSet

    chosen = parse_scorers(scorer) if scorer else list(GSM8K_SCORERS)
    names = {one.key: one.label or one.name for one in chosen}
    if len(set(names.values())) < len(names):
        raise InvalidRequest("--scorer: two scorers have the same name; give them different labels")
    recorded = RecordedScores(ScorerSet(chosen, form=form.value), names)
    # an invalid line must leave no output, so the lines are kept until the last one is valid
    with tempfile.TemporaryFile("w+", encoding="ascii", dir=output.parent if output else None) as waiting:
        with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as stream:
            try:
                for line in recorded.lines(stream):
                    waiting.write(line + "\n")
            except InvalidDataset as error:
                raise InvalidDataset(
                    f"{'standard input' if file == '-' else file}: {error.message}"
                ) from None
        waiting.seek(0)
        if output is None:
            shutil.copyfileobj(waiting, sys.stdout)
            sys.stdout.flush()
        else:
            _replace(output, waiting)
    note(_table(recorded.tallies))
    if recorded.repeated_ids:
        note(f"{recorded.repeated_ids} ids occur on several lines; each line is scored by itself")


@app.command()
def rescore(
    ctx: typer.Context,
    job: JobArgument,
    *,
    scorer: ScorerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Score a job's stored completions with other scorers, without a worker.

    The first scorer decides `correct`. Scores of other scorers are kept.
    """
    from actograph.cli.output import job_tables

    if not scorer:
        raise InvalidRequest("--scorer is missing; for example --scorer numeric")
    chosen = parse_scorers(scorer)
    with closing(client_of(ctx)) as client:
        job_id = identifiers.job(client, job)
        results = client.jobs.rescore(job_id, chosen)
        if output is Format.JSON:
            emit(results.model_dump_json())
            return
        emit(job_tables.render_results(results, client.jobs.get(job_id).spec.get("num_fewshot")))


def _replace(output: Path, waiting: Any) -> None:
    """Write a file beside `output` and rename it, so that readers see the old or the new one."""
    part = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="ascii") as target:
            shutil.copyfileobj(waiting, target)
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)


def _table(tallies: "dict[str, Tally]") -> str:
    rows = [
        [
            name,
            tables.figure(tally.moments.mean),
            tables.figure(tally.moments.stderr),
            str(tally.unparsed),
            str(tally.count),
        ]
        for name, tally in tallies.items()
    ]
    return tables.render(HEADERS, rows, right=HEADERS[1:])
