"""Ids of jobs, sessions and batches as arguments."""

from typing import Annotated

import typer

from actograph.cli.flags import completion

JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="Id, or a unique prefix.", autocompletion=completion.jobs)
]
JobArguments = Annotated[
    list[str],
    typer.Argument(metavar="JOB", help="Ids, or unique prefixes.", autocompletion=completion.jobs),
]
SessionArgument = Annotated[
    str,
    typer.Argument(metavar="SESSION", help="Id, or a unique prefix.", autocompletion=completion.sessions),
]
SessionArguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="SESSION", help="Ids, or unique prefixes.", autocompletion=completion.sessions),
]
BatchArgument = Annotated[
    str, typer.Argument(metavar="BATCH", help="Id, or a unique prefix.", autocompletion=completion.batches)
]
