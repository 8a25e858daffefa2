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
        str | None, typer.Option(help="Hub id or folder of the model, or NAME=<id or folder>.")
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
        port=port,
        host=host,
        api_processes=api_processes,
        data_roots=tuple(data_root) if data_root else None,
        device=device,
        dtype=dtype,
        threads=threads,
        log_level=log_level,
    )
    _check_model(settings.model)
    _run(settings.model_copy(update={"home": settings.home.expanduser().absolute()}), workers)


def _check_model(model: str) -> None:
    """Raises InvalidRequest if no model is set, or its folder does not exist."""
    from actograph.contract.models import model_names

    if not model:
        raise InvalidRequest(
            "no model: set --model to a hub id (Qwen/Qwen3-0.6B), a folder, or NAME=<id or folder>"
        )
    source = model_names.parse(model).source
    if source.startswith(_PATH_STARTS) and not Path(source).is_dir():
        raise InvalidRequest(f"--model {model}: no folder {source!r}")


def _run(settings: "Settings", workers: int) -> None:
    """Run the stack until a stop signal."""
    from actograph.stack.home_lock import HomeLock, close_to_others
    from actograph.stack.processes import CrashLoop
    from actograph.stack.stack import Stack, StackOptions, require_installed
    from actograph.stack.stop_signals import StopSignals

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

        note(f"starting on {settings.home}; the worker loads {settings.model}")
        try:
            stack.run(ready)
        except CrashLoop as error:
            if error.tail:
                note(error.tail)
            raise
    if signals.insisted():
        raise exit_codes.Ended(exit_codes.INTERRUPTED)
