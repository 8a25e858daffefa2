"""`actograph eval`: run a task, rescore a job."""

from typing import Any

import typer

from actograph.cli import jobs
from actograph.cli.flags import (
    FormatOption,
    IdArgument,
    ScorersOption,
    add_flags,
    connect,
    examples,
    job_id,
    scorers_of,
)
from actograph.cli.job_flags import job_options
from actograph.cli.job_tables import results_table
from actograph.cli.output import Format, emit
from actograph.contract.errors import InvalidRequest


class _RunByDefault(typer.core.TyperGroup):
    """`actograph eval TASK` is `actograph eval run TASK`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_RunByDefault, no_args_is_help=True, help="Run a task (`eval TASK`), or rescore a job.")


@app.command(
    epilog=examples(
        "actograph eval gsm8k --dataset test.jsonl --limit 100 --capture resid_post@all",
        "actograph eval gsm8k --condition plain --condition 'EP02:suffix=This matters to me.'",
        "actograph eval additions.yaml --epochs 4 --temperature 0.8",
    )
)
@add_flags(job_options(without=("spec", "kind", "task", "prompt", "text_field", "truncate", "mode")))
def run(
    ctx: typer.Context,
    task: str = typer.Argument(metavar="TASK|TASK.yaml", help="Name of a task, or a YAML file."),
    *,
    watch: bool = typer.Option(True, help="Follow the job to its end."),
    output: FormatOption = Format.TABLE,
    **flags: Any,
) -> None:
    """Run a task and print its scores: the name of a task, or a YAML file.

    With two or more conditions, a comparison with the first one follows. Built-in tasks read their rows
    from the Hugging Face Hub unless --dataset is given.
    """
    jobs.run(ctx, output, watch=watch, task=task, kind="evaluation", **flags)


@app.command()
def rescore(
    ctx: typer.Context, job: IdArgument, *, scorer: ScorersOption = None, output: FormatOption = Format.TABLE
) -> None:
    """Score a job's stored completions with other scorers, without a worker.

    The first scorer decides `correct`. Scores of other scorers are kept.
    """
    if not scorer:
        raise InvalidRequest("--scorer is missing; for example --scorer numeric")
    chosen = scorers_of(scorer)
    with connect(ctx) as client:
        scored = client.jobs.get(job_id(client, job))
        results = scored.rescore(chosen)
    if output is Format.JSON:
        emit(results.model_dump_json())
    else:
        emit(results_table(results, scored.spec.get("num_fewshot")))
