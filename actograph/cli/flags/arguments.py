"""Ids of jobs, sessions and batches as arguments."""

from typing import Annotated

import typer

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Id, or a unique prefix.")]
JobArguments = Annotated[
    list[str],
    typer.Argument(metavar="JOB", help="Ids, or unique prefixes."),
]
SessionArgument = Annotated[
    str,
    typer.Argument(metavar="SESSION", help="Id, or a unique prefix."),
]
SessionArguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="SESSION", help="Ids, or unique prefixes."),
]
BatchArgument = Annotated[str, typer.Argument(metavar="BATCH", help="Id, or a unique prefix.")]
