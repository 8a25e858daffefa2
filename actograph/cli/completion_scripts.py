"""`actograph completion`: scripts for Tab completion."""

from enum import StrEnum
from typing import Annotated

import typer

from actograph.cli.output.output import emit


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.", show_default=False)],
) -> None:
    """Print a script for Tab completion of commands, options, ids and models.

    `actograph --install-completion` installs it for the current shell.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    emit(get_completion_script(prog_name="actograph", complete_var="_ACTOGRAPH_COMPLETE", shell=shell.value))
