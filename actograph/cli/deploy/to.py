"""`actograph deploy TARGET`: install, start and test the service on a box."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from actograph.cli.deploy.group import READY_SECONDS, SecondsOption, app, boxes, show_log
from actograph.cli.flags.options import FormatOption, GlobalOptions
from actograph.cli.output.output import Format, emit, note
from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from actograph.deploy.boxes import Deployment
    from actograph.deploy.deployment import Mode


@app.command()
def to(
    ctx: typer.Context,
    target: Annotated[str, typer.Argument(help="user@host[:port], or the name of a box.")],
    *,
    name: Annotated[str | None, typer.Option(help="Name of the deployment. Default: the host.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Hub id, folder on the box, or ./folder here, which is uploaded.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port on the box's loopback. (default: 8420)")] = None,
    local_port: Annotated[
        int | None, typer.Option(help="Port of the tunnel here. Default: the same, or a free one.")
    ] = None,
    folder: Annotated[str | None, typer.Option(help="Folder on the box. (default: actograph)")] = None,
    options: Annotated[str | None, typer.Option(help="More flags of `actograph up`.")] = None,
    env_file: Annotated[
        Path | None, typer.Option(help="Settings and secrets of the service: NAME=value lines.")
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(help="Python on the box, whose packages are used. Default: a new environment."),
    ] = None,
    wheels: Annotated[Path | None, typer.Option(help="Folder of wheels to upload for pip.")] = None,
    lock: Annotated[
        Path | None, typer.Option(help="File of pinned versions. Default: those of here.")
    ] = None,
    pip: Annotated[str | None, typer.Option(help="More flags of `pip install`.")] = None,
    ssh: Annotated[str | None, typer.Option(help="The ssh command, with flags. (default: ssh)")] = None,
    reuse: Annotated[bool, typer.Option("--reuse", help="Install what is missing (default).")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Install everything anew.")] = False,
    frozen: Annotated[
        bool, typer.Option("--frozen", help="Install nothing; refuse if the box differs from here.")
    ] = False,
    smoke: Annotated[bool, typer.Option(help="Run the smoke test at the end.")] = True,
    timeout: SecondsOption = READY_SECONDS,
    output: FormatOption = Format.TABLE,
) -> None:
    """Install the service on a box, start it, open a tunnel and run the smoke test.

    A release that does not start or fails the smoke test is replaced by the former one.
    """
    from actograph.deploy.boxes import box_of
    from actograph.deploy.deployment import Deploy

    mode = _mode(reuse, fresh, frozen)
    known = boxes()
    default_name, fields = known.box(target)
    given = {
        "model": model, "port": port, "local_port": local_port, "folder": folder, "options": options,
        "env_file": _path(env_file), "python": python, "wheels": _path(wheels), "lock": _path(lock),
        "pip": pip, "ssh": ssh,
    }  # fmt: skip
    box = box_of(fields | {key: value for key, value in given.items() if value is not None})
    deployed = Deploy(
        boxes=known, name=name or default_name, box=box, mode=mode,
        seconds=timeout, note=note, log=show_log, smoke=smoke,
        api_key=(ctx.find_object(GlobalOptions) or GlobalOptions()).api_key,
    ).run()  # fmt: skip
    emit(deployed.model_dump_json() if output is Format.JSON else next_commands(deployed))


def _mode(reuse: bool, fresh: bool, frozen: bool) -> "Mode":
    from actograph.deploy.deployment import Mode

    modes = [mode for mode, is_set in zip(Mode, (reuse, fresh, frozen), strict=True) if is_set]
    if len(modes) > 1:
        raise InvalidRequest("choose one of --reuse, --fresh and --frozen")
    return modes[0] if modes else Mode.REUSE


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path.expanduser().absolute())


def next_commands(deployed: "Deployment") -> str:
    """The commands that come next."""
    name = shlex.quote(deployed.name)
    lines = [
        f"ready: {deployed.url}",
        f"export ACTOGRAPH_URL={deployed.url}",
        "actograph jobs submit --prompt 'Once upon a time' --capture resid_post@all --watch",
        f"actograph deploy logs {name} -f",
        f"actograph deploy tunnel {name}     # opens the tunnel again",
        f"actograph deploy rollback {name}",
        f"actograph deploy destroy {name} --keep home",
    ]
    return "\n".join(lines)
