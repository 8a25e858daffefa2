"""`actograph eval`: run a task, rescore a job."""

from contextlib import closing
from typing import Annotated, Any

import typer

from actograph.cli.flags import identifiers
from actograph.cli.flags.add_flags import add_flags
from actograph.cli.flags.arguments import JobArgument
from actograph.cli.flags.job_flags import job_options
from actograph.cli.flags.options import FormatOption, client_of
from actograph.cli.flags.scorer_flags import ScorerOption, parse_scorers
from actograph.cli.jobs import jobs
from actograph.cli.output.output import Format, emit
from actograph.contract.errors import InvalidRequest


class _RunByDefault(typer.core.TyperGroup):
    """`actograph eval TASK` is `actograph eval run TASK`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunByDefault,
    no_args_is_help=True,
    help="Run a task (`eval TASK`), or rescore a job.",
)

#: flags of `jobs submit` for other kinds of jobs
_OTHER_KINDS = ("prompt", "text_field", "truncate", "mode")


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
