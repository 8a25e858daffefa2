"""`actograph up`: broker, API and workers on this machine, in the foreground."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from actograph.cli import exit_codes
from actograph.cli.flags.options import load_settings
from actograph.cli.output.output import emit, note
from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from actograph.settings import Settings

#: prefixes of folders; other models are Hub ids
_PATH_STARTS = ("/", "./", "../", "~")


def up(
    *,
    home: Annotated[Path | None, typer.Option(help="Data folder. (default: ~/.actograph)")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Hub id or folder of the model, or NAME=<id or folder>. Default: none is loaded."),
    ] = None,
    allow_model: Annotated[
        list[str] | None,
        typer.Option(help="Further model that jobs and loads may name. Repeat for more."),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port of the API; 0 picks a free one. (default: 8420)")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address of the API. (default: 127.0.0.1)")] = None,
    api_processes: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Number of API processes. (default: 1)"),
    ] = None,
    data_root: Annotated[
        list[str] | None, typer.Option(help="Folder that jobs may read datasets from. Repeat for more.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Number of workers; each loads the model.")] = 1,
    analysis_workers: Annotated[
        int | None,
        typer.Option(min=0, max=64, help="Number of analysis workers, which hold no model. (default: 1)"),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="cpu, cuda, cuda:1; commas assign one per worker. (default: auto)"),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32, float16, bfloat16 or auto. (default: auto)")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads per worker. (default: torch's)")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Run the service until Ctrl-C. Workers then finish their current batch.

    Prints `ready: URL` once the service accepts requests. ACTOGRAPH_* variables set the defaults.
    A second Ctrl-C stops everything at once.
    """
    settings = load_settings(
        home=home,
        model=model,
        allowed_models=tuple(allow_model) if allow_model else None,
        port=port,
        host=host,
        api_processes=api_processes,
        analysis_workers=analysis_workers,
        data_roots=tuple(data_root) if data_root else None,
        device=device,
        dtype=dtype,
        threads=threads,
        log_level=log_level,
    )
    for text in (settings.model, *settings.allowed_models):
        _check_model(text)
    _run(settings.model_copy(update={"home": settings.home.expanduser().absolute()}), workers)


def _check_model(model: str) -> None:
    """Raises InvalidRequest if the folder of a model does not exist."""
    from actograph.contract.models import model_names

    source = model_names.parse(model).source if model else ""
    if source.startswith(_PATH_STARTS) and not Path(source).is_dir():
        raise InvalidRequest(f"model {model}: no folder {source!r}")


def _plan(settings: "Settings") -> str:
    """The model that is loaded at the start, or how to load one."""
    if settings.model:
        return f"the worker loads {settings.model}"
    if settings.allowed_models:
        names = ", ".join(settings.allowed_models)
        return f"no model is loaded; load one of {names} with: actograph models load"
    return "no model is loaded, and none may be: start with --model or --allow-model"


def _run(settings: "Settings", workers: int) -> None:
    """Run the stack until a stop signal."""
    from actograph.stack.home_lock import HomeLock, close_to_others
    from actograph.stack.stack import Stack, StackOptions, require_installed
    from actograph.stack.stop_signals import StopSignals
    from actograph.stack.supervisor import CrashLoop

    require_installed()
    options = StackOptions(
        settings=settings, workers=workers, broker_url=os.environ.get("ACTOGRAPH_BROKER_URL") or None
    )
    with StopSignals() as signals, HomeLock(settings.home):
        if (closed := close_to_others(settings.home)) is not None:
            note(closed)
        stack = Stack(options, note, signals)

        def ready() -> None:
            emit(f"ready: {stack.url}")
            note(f"logs: {options.logs}; stop with Ctrl-C")
            if not stack.has_default_address:
                note(f"for other commands: export ACTOGRAPH_URL={shlex.quote(stack.url)}")

        note(f"starting on {settings.home}; {_plan(settings)}")
        try:
            stack.run(ready)
        except CrashLoop as error:
            if error.tail:
                note(error.tail)
            raise
    if signals.insisted():
        raise exit_codes.Ended(exit_codes.INTERRUPTED)
