"""`actograph run`, `schema` and `report`: whole experiments from a YAML file, and what came of jobs."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from actograph.cli.deploy import deployed, tunnelled
from actograph.cli.flags import DryRunOption, IdArguments, names
from actograph.cli.job_tables import describe_estimate
from actograph.cli.shell import ERROR, Shell, emit, end, note, on_interrupt
from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from actograph.contract.operations import Estimate
    from actograph.experiment.experiment import Experiment


def run(
    shell: Shell,
    file: Path = typer.Argument(metavar="EXPERIMENT.yaml"),
    *,
    stages: list[str] = typer.Option([], help="Stages to run (commas or repeated). Default: all."),
    folder: Path | None = typer.Option(
        None, "--out", "-o", help="Run folder. Default: runs/NAME beside the file."
    ),
    dry_run: DryRunOption = False,
    env: list[str] = typer.Option(
        [], help="With a stage `deploy`: a variable of this shell for the service, or NAME=VALUE. Repeat."
    ),
    ssh: str | None = typer.Option(None, help="With a stage `deploy`: the ssh command. (default: ssh)"),
) -> None:
    """Run an experiment: load the model, run all jobs, fetch their results.

    The run folder has the state: the same command again does only the missing steps.
    """
    from actograph.experiment.experiment import read
    from actograph.experiment.run import ExperimentRun, RunFolder

    experiment = read(file)
    chosen = names(stages) or experiment.stages
    if missing := [stage for stage in chosen if stage not in experiment.stages]:
        has = ", ".join(experiment.stages) or "none"
        raise InvalidRequest(f"--stages: {file} has no stage {missing[0]!r}; it has {has}")
    place = folder or file.parent / "runs" / experiment.name
    ordered = [stage for stage in experiment.stages if stage in chosen and stage != "deploy"]
    deploys = "deploy" in chosen and not dry_run
    service = _service(shell, experiment, deploys=deploys, env=env, ssh=ssh)
    progress = not shell.json
    here = ExperimentRun(
        shell.client, experiment, RunFolder(place), file.parent, service=service, note=note, progress=progress
    )
    if dry_run:
        _show_plan(shell, here.plan(ordered), dict(here.estimates()))
        return
    with on_interrupt(f"interrupted; run the same command again to go on (state: {place})"):
        here.run(ordered)
    emit(json.dumps({"folder": str(place)}) if shell.json else str(place))


def _service(
    shell: Shell, experiment: "Experiment", *, deploys: bool, env: list[str], ssh: str | None
) -> str:
    """Connect the shell to the service of the experiment, and return a name of it.

    This is `--url`, else the experiment's box, else `ACTOGRAPH_URL`.

    Raises:
        InvalidRequest: flags for a box without a stage `deploy`, or the box is to be deployed to and `--url`
            names another service.
    """
    stage = experiment.deploy
    if stage is None and (env or ssh):
        raise InvalidRequest("--env and --ssh need a stage `deploy`; remove them, or add the stage")
    if stage is None or (shell.options.has_url_flag and not deploys):
        return shell.client.base_url
    if shell.options.has_url_flag:
        rest = ",".join(one for one in experiment.stages if one != "deploy")
        instead = f", or run on that service with --stages {rest}" if rest else ""
        raise InvalidRequest(
            f"--url {shell.options.url} is not the service that stage `deploy` starts on {stage.target}; "
            f"leave out --url{instead}"
        )
    if shell.options.url:
        note(f"the experiment runs on {stage.target}, not on {shell.options.url} (ACTOGRAPH_URL)")
    given = stage.model_dump(exclude={"target"})
    # what is on the box already is not sent again, and nothing is restarted
    found = deployed(shell, stage.target, env, ssh=ssh, **given) if deploys else tunnelled(stage.target)
    shell.options.url = found.url
    return f"{stage.target} {found.folder}"


def _show_plan(shell: Shell, plan: dict[str, bool], estimates: dict[str, "Estimate"]) -> None:
    if shell.json:
        jobs = {name: estimate.model_dump(mode="json") for name, estimate in estimates.items()}
        emit(json.dumps({"done": plan, "jobs": jobs}))
    else:
        for stage, done in plan.items():
            emit(f"{stage}: {'done' if done else 'to do'}")
        for name, estimate in estimates.items():
            emit(f"\n{name}\n{describe_estimate(estimate)}")
    end(ERROR if any(estimate.fits is False for estimate in estimates.values()) else 0)


def report(
    shell: Shell,
    jobs: IdArguments,
    *,
    out: Path = typer.Option(Path("report.html"), "--out", "-o", help="HTML file; figures go beside it."),
    title: str = typer.Option("Report", help="Title of the page."),
) -> None:
    """Write one HTML page about jobs and analyses, and its figures as SVG and PNG.

    The page loads nothing from the network. It needs matplotlib: pip install 'actograph[report]'.
    """
    from actograph.report import report

    command = shlex.join(["actograph", *sys.argv[1:]])
    ids = [shell.id("job", job) for job in jobs]
    made = report.of_jobs(shell.client, ids, title=title, command=command)
    made.write(out)
    emit(json.dumps({"file": str(out)}) if shell.json else str(out))


def schema(
    shell: Shell,
    what: Literal["experiment", "job"] = typer.Argument("experiment"),
) -> None:
    """Print the JSON schema of an experiment file or of a job, for editors."""
    from actograph.contract.job_specs import job_spec_adapter
    from actograph.experiment import experiment

    found = experiment.schema() if what == "experiment" else job_spec_adapter.json_schema()
    emit(json.dumps(found, indent=1))
