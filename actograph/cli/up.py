"""`actograph up` and `drain`: broker, API and workers here, in the foreground; and `open`: the page."""

import json
import os
import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from actograph.cli.flags import ADAPTER, names, with_adapters
from actograph.cli.shell import (
    ERROR,
    INTERRUPTED,
    Shell,
    emit,
    end,
    load_settings,
    note,
    on_interrupt,
)
from actograph.contract.errors import InvalidRequest

#: settings by their names: type and help
_SETTINGS: dict[str, tuple[Any, str]] = {
    "home": (Path, "Data folder. (default: ~/.actograph)"),
    "model": (str, "Hub id or folder of the model, or NAME=<id or folder>."),
    "port": (int, "Port of the API; 0 picks a free one. (default: 8420)"),
    "host": (str, "Address of the API. (default: 127.0.0.1)"),
    "api_processes": (int, "Number of API processes. (default: 1)"),
    "device": (str, "cpu, cuda, cuda:1; commas assign one per worker. (default: auto)"),
    "dtype": (str, "float32, float16, bfloat16 or auto. (default: auto)"),
    "tensor_parallel": (int, "Ranks that share the model, each with a GPU of its own. (default: 1)"),
    "repeatable": (bool, "Bit-equal results whatever runs beside a sample; slower. (default: off)"),
    "threads": (int, "CPU threads per worker. (default: torch's)"),
    "log_level": (str, "debug, info, warning or error."),
}
FLAGS = {name: Annotated[kind | None, typer.Option(help=about)] for name, (kind, about) in _SETTINGS.items()}


def up(
    _: Shell,
    source: str | None = typer.Argument(None, metavar="MODEL", help="The same as --model."),
    *,
    data_root: list[str] = typer.Option([], help="Folders with datasets of jobs (commas or repeated)."),
    allow_model: list[str] = typer.Option([], help="Further models that jobs may load (commas or repeated)."),
    adapter: list[str] = typer.Option([], help=ADAPTER),
    user_tool: list[str] = typer.Option([], help="Tools: NAME=module:function (commas or repeated)."),
    user_scorer: list[str] = typer.Option([], help="Scorers: NAME=module:function (commas or repeated)."),
    workers: int = typer.Option(1, min=1, max=64, help="Number of workers; each loads the model."),
    **given: Any,
) -> None:
    """Run the service until Ctrl-C. Workers then finish their running samples.

    Prints `ready: URL` once the service accepts requests. ACTOGRAPH_* variables set the defaults.
    A second Ctrl-C stops everything at once.
    """
    from actograph.contract.models import names_folder, parse_served
    from actograph.stack.up import run

    if source is not None and given["model"] is not None:
        raise InvalidRequest(f"two models: {source!r} and --model {given['model']!r}; leave one out")
    if source is not None:
        given["model"] = source
    settings = load_settings(
        data_roots=tuple(names(data_root)) or None,
        allowed_models=tuple(names(allow_model)) or None,
        user_tools=tuple(names(user_tool)) or None,
        user_scorers=tuple(names(user_scorer)) or None,
        **given,
    )
    settings = with_adapters(settings, adapter)
    served = [text for text in (settings.model, *settings.allowed_models) if text]
    if not served:
        raise InvalidRequest(
            "no model: set --model to a hub id (Qwen/Qwen3-0.6B), a folder, or NAME=<id or folder>; "
            "--allow-model instead starts without one, and the first job loads it"
        )
    for model in map(parse_served, served):
        for place in filter(None, (model.source, model.adapter)):
            if names_folder(place) and not Path(place).is_dir():
                raise InvalidRequest(f"model {model.name}: no folder {place!r}")
    end(INTERRUPTED if run(settings, workers, emit=emit, report=note) else 0)


def drain(
    shell: Shell,
    file: Path | None = typer.Argument(None, metavar="EXPERIMENT.yaml"),
    *,
    folder: Path | None = typer.Option(
        None, "--out", "-o", help="Run folder. Default: runs/NAME beside the file."
    ),
    data_root: list[str] = typer.Option([], help="Folders with datasets of jobs (commas or repeated)."),
    workers: int = typer.Option(1, min=1, max=64, help="Number of workers; each loads the model."),
    adapter: list[str] = typer.Option([], help=ADAPTER),
    **given: Any,
) -> None:
    """Run the service until no job is open, then exit. For rented machines that end with the command.

    Runs the jobs of an experiment, without its stage `deploy`, and all jobs that are already in the index.
    The experiment's results go to its run folder. After an interruption, the same command continues. Exit
    status 1: a job failed, or no job can run.
    """
    from actograph.experiment.experiment import read
    from actograph.experiment.run import ExperimentRun, RunFolder
    from actograph.stack.drain import failed_jobs, wait_for_jobs
    from actograph.stack.home import id_of
    from actograph.stack.programs import require_installed
    from actograph.stack.up import up_process

    require_installed()
    experiment = None if file is None else read(file)
    settings = load_settings(data_roots=tuple(data_root) or None, **given)
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None]
    arguments += [f"--workers={workers}", *(f"--data-root={root}" for root in data_root)]
    arguments += [f"--adapter={one}" for one in adapter]
    options = shell.options
    options.api_key = options.api_key or settings.api_key or next(iter(settings.api_keys), None)
    # a machine is ended by SIGTERM; as with Ctrl-C, the workers finish their samples
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        on_interrupt("stopped; run the same command again to go on"),
        up_process(arguments, os.environ) as url,
    ):
        options.url = url
        before = failed_jobs(shell.client)
        if experiment is not None and file is not None:
            place = folder or file.parent / "runs" / experiment.name
            service = id_of(settings.home.expanduser())
            here = ExperimentRun(
                shell.client, experiment, RunFolder(place), file.parent, service=service, note=note
            )
            here.run([stage for stage in experiment.stages if stage != "deploy"])
        wait_for_jobs(shell.client, note)
        lost = sorted(failed_jobs(shell.client) - before)
    emit(json.dumps({"failed": lost}) if shell.json else f"drained; failed jobs: {', '.join(lost) or 'none'}")
    end(ERROR if lost else 0)


def open_page(
    shell: Shell,
    name: str | None = typer.Argument(
        None, metavar="ID", help="Job or session, or a unique prefix. Default: the overview."
    ),
) -> None:
    """Open the page of the service in a browser, and print its address."""
    import webbrowser

    path = ""
    if name is not None:
        is_session = name.startswith("ses_")
        path = f"sessions/{shell.id('ses', name)}" if is_session else f"jobs/{shell.id('job', name)}"
    address = f"{(shell.options.url or load_settings().effective_url).rstrip('/')}/{path}"
    emit(address)
    webbrowser.open(address)
