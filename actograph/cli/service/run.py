"""`actograph run`: all stages of an experiment file."""

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.cli import exit_codes
from actograph.cli.flags.options import DryRunOption, FormatOption, GlobalOptions, client_of
from actograph.cli.output.output import Format, emit, note
from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from actograph.experiment.spec import DeployStage
    from actograph.experiment.stages import Run


def run(
    ctx: typer.Context,
    experiment: Annotated[Path | None, typer.Argument(help="Experiment file (YAML).")] = None,
    *,
    out: Annotated[
        Path | None, typer.Option(help="Run folder. Default: runs/NAME beside the experiment.")
    ] = None,
    stages: Annotated[str | None, typer.Option(help="Stages to run, comma-separated. Default: all.")] = None,
    dry_run: DryRunOption = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of experiment files, for editors.")
    ] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Run the stages of an experiment file: deploy, model, evaluate, analyse, fetch, report.

    A stage that is done is not run again, unless its fields or data changed. After a break, run it again:
    nothing is done twice.
    """
    from actograph.experiment import spec
    from actograph.experiment.reading import read
    from actograph.experiment.run_folder import RunFolder
    from actograph.experiment.stages import Run

    if schema:
        emit(json.dumps(spec.schema(), indent=1))
        return
    if experiment is None:
        raise InvalidRequest("name an experiment file, or use --schema")
    read_experiment = read(experiment)
    chosen = _chosen(stages, read_experiment.stages())
    options = ctx.ensure_object(GlobalOptions)
    options.url = options.url or read_experiment.deploy.url
    if read_experiment.deploy.box is not None and options.url is None:
        options.url = _url_of_box(read_experiment.deploy, "deploy" in chosen and not dry_run)
    folder = RunFolder(out or experiment.absolute().parent / "runs" / read_experiment.name)
    with closing(client_of(ctx)) as client:
        running = Run(client, read_experiment, folder, experiment.absolute().parent, note, progress=True)
        if dry_run:
            _show_plan(running, chosen, output)
            return
        running.run(chosen)
    if output is Format.JSON:
        emit(json.dumps(folder.state["stages"]))
    else:
        emit(str(folder.path))


def _url_of_box(stage: "DeployStage", deploys: bool) -> str:
    """Deploy to the box of an experiment, or open the tunnel to its service. Returns the URL."""
    from actograph.cli.deploy.group import READY_SECONDS, boxes, show_log
    from actograph.deploy import tunnel
    from actograph.deploy.boxes import box_of
    from actograph.deploy.deployment import Deploy, Mode
    from actograph.deploy.ssh import Ssh

    assert stage.box is not None
    known = boxes()
    name, fields = known.box(stage.box)
    if deploys:
        box = box_of(fields | ({} if stage.model is None else {"model": stage.model}))
        work = Deploy(
            boxes=known, name=name, box=box, mode=Mode(stage.mode), seconds=READY_SECONDS, note=note,
            log=show_log, smoke=stage.smoke,
        )  # fmt: skip
        return work.run().url
    deployment = known.deployment(name)
    with Ssh(deployment.box.target, deployment.box.ssh) as ssh:
        messages = known.file.parent / "deployments" / f"{name}.log"
        deployment = tunnel.open_tunnel(ssh, deployment, messages)
    known.save(deployment)
    return deployment.url


def _chosen(typed: str | None, has: list[str]) -> list[str]:
    if typed is None:
        return has
    chosen = [name.strip() for name in typed.split(",")]
    unknown = [name for name in chosen if name not in has]
    if unknown:
        raise InvalidRequest(
            f"--stages: the experiment has no stage {', '.join(unknown)}; it has {', '.join(has)}"
        )
    return chosen


def _show_plan(running: "Run", chosen: list[str], output: Format) -> None:
    """Print the stages and the estimate of each job. Exit status 1: a job does not fit."""
    from actograph.cli.jobs.estimate import describe

    plan: dict[str, Any] = {"stages": running.plan(chosen), "jobs": {}}
    fits = True
    for name in running.bodies if "evaluate" in chosen else ():
        found = running.estimate(name)
        fits = fits and found.fits is not False
        plan["jobs"][name] = found.model_dump(mode="json")
        if output is Format.TABLE:
            emit(f"{name}\n{describe(found)}\n")
    if output is Format.JSON:
        emit(json.dumps(plan))
    else:
        emit("\n".join(f"{stage}: {state}" for stage, state in plan["stages"].items()))
    if not fits:
        raise exit_codes.Ended(exit_codes.ERROR)
