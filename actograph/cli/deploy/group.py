"""The group of `deploy` commands, and their common options."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.cli.flags.options import load_settings
from actograph.cli.output.output import emit, note

if TYPE_CHECKING:
    from actograph.deploy.boxes import Boxes


class _ToByDefault(typer.core.TyperGroup):
    """`actograph deploy TARGET` is `actograph deploy to TARGET`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["to", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_ToByDefault,
    no_args_is_help=True,
    help="Deploy the service to a machine (`deploy user@host`), and look after it there.",
)

BoxArgument = Annotated[
    str | None, typer.Argument(metavar="BOX", help="Name or target of a deployment. Default: the only one.")
]
SecondsOption = Annotated[
    float, typer.Option("--timeout", min=1, help="Seconds until the service must be ready.")
]
READY_SECONDS = 1800.0


def boxes() -> "Boxes":
    """The boxes of this machine's home folder."""
    from actograph.deploy.boxes import Boxes

    return Boxes(Path(load_settings().home).expanduser())


def show_log(line: str) -> None:
    """Show a line of the service's log while a command waits."""
    note(f"  | {line}")


def print_log(line: str) -> None:
    emit(line)
