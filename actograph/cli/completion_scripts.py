"""`actograph completion`: what a shell runs so that Tab completes."""

from enum import StrEnum
from typing import Annotated

import typer

from actograph.cli.output.output import emit


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="Whose script.", show_default=False)]) -> None:
    """Print the script by which a shell completes commands, options, ids and models on Tab.

    `actograph --install-completion` puts it where the shell that you are in looks for it.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    emit(get_completion_script(prog_name="actograph", complete_var="_ACTOGRAPH_COMPLETE", shell=shell.value))
