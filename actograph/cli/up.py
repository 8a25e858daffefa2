"""`actograph up`: broker, API and workers on this machine, in the foreground."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from actograph.cli import exit_codes
from actograph.cli.flags.options import load_settings
from actograph.cli.output.output import emit, note
from actograph.contract.errors import InvalidRequest

#: how a folder is told from a hub id where it does not exist
_PATH_STARTS = ("/", "./", "../", "~")


def up(
    *,
    home: Annotated[
        Path | None, typer.Option(help="Folder of everything that is kept. (default: ~/.actograph)")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Hub id or folder of the model, or NAME=<id or folder>.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port of the API; 0: any free one. (default: 8420)")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address of the API. (default: 127.0.0.1)")] = None,
    api_processes: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Processes that serve the API. (default: 1)"),
    ] = None,
    data_root: Annotated[
        list[str] | None, typer.Option(help="Folder that jobs may read datasets from; repeat for more.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Workers; each holds the model.")] = 1,
    device: Annotated[
        str | None,
        typer.Option(help="cpu, cuda, cuda:1; with commas one for each worker in turn. (default: auto)"),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32, float16, bfloat16 or auto. (default: auto)")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Torch CPU threads of each worker.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Run the service until Ctrl-C, which lets the workers finish what they have in hand.

    Prints `ready: URL` when requests will be served. Options that are left out come from ACTOGRAPH_*
    variables. A second Ctrl-C ends everything at once.
    """
    import os

    from actograph.contract.models import model_names
    from actograph.stack.home_lock import HomeLock, close_to_others
    from actograph.stack.stack import Stack, StackOptions, require_installed
    from actograph.stack.stop_signals import StopSignals
    from actograph.stack.supervisor import CrashLoop

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
    if not settings.model:
        raise InvalidRequest(
            "no model: say which with --model, as a hub id (Qwen/Qwen3-0.6B), a folder, "
            "or NAME=<id or folder>"
        )
    source = model_names.parse(settings.model).source
    if source.startswith(_PATH_STARTS) and not Path(source).is_dir():
        raise InvalidRequest(f"--model {settings.model}: there is no folder {source}")
    require_installed()
    settings = settings.model_copy(update={"home": settings.home.expanduser().absolute()})
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
                note(f"for the other commands: export ACTOGRAPH_URL={shlex.quote(stack.url)}")

        note(f"starting on {settings.home}; the worker loads {settings.model}")
        try:
            stack.run(ready)
        except CrashLoop as error:
            if error.tail:
                note(error.tail)
            raise
    if signals.insisted():
        raise exit_codes.Ended(exit_codes.INTERRUPTED)
