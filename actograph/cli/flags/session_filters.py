"""The options by which `actograph sessions` chooses sessions, and what they ask of the service."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.cli.flags import completion, identifiers
from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from actograph.client import Client
    from actograph.client.queries import SessionQuery

ChosenSessions = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SESSION...]", help="Ids, or their beginnings.", autocompletion=completion.sessions
    ),
]
EveryOption = Annotated[bool, typer.Option("--all", help="Every session there is.")]
JobOption = Annotated[
    str | None,
    typer.Option("--job", help="Sessions of this job (id or its beginning).", autocompletion=completion.jobs),
]
ModelOption = Annotated[
    str | None, typer.Option(help="Sessions of this model.", autocompletion=completion.models)
]
ConditionOption = Annotated[str | None, typer.Option(help="Sessions of this condition.")]
SampleOption = Annotated[int | None, typer.Option(help="Sessions of this row of the dataset.")]
CorrectOption = Annotated[
    bool | None, typer.Option("--correct/--incorrect", help="By the verdict of the first scorer.")
]
TagOption = Annotated[str | None, typer.Option("--tag", help="Sessions with this tag.")]
OwnerOption = Annotated[str | None, typer.Option(help="Sessions of this owner.")]
PinnedOption = Annotated[bool | None, typer.Option("--pinned/--not-pinned", help="By their pin.")]


def query(client: "Client", flags: Mapping[str, Any]) -> "SessionQuery":
    """The filters among a command's flags, the job's id resolved. Raises what resolving does."""
    job = flags["job"]
    wanted: SessionQuery = {
        "job_id": None if job is None else identifiers.job(client, job),
        "model": flags["model"],
        "condition": flags["condition"],
        "sample_index": flags["sample_index"],
        "correct": flags["correct"],
        "tag": flags["tag"],
        "owner": flags["owner"],
        "pinned": flags.get("pinned"),
    }
    return wanted


def check_choice(ids: list[str], *, filtered: bool, everything: bool) -> None:
    """Sessions are named by id, or by filter, or all of them.

    Raises:
        InvalidRequest: by none of these, or by more than one.
    """
    if bool(ids) + filtered + everything != 1:
        raise InvalidRequest("name sessions by id, or by filters such as --job and --tag, or say --all")


def is_filtered(wanted: "SessionQuery") -> bool:
    """Whether any filter was given."""
    return any(value is not None for value in wanted.values())


def resolve(client: "Client", typed: str) -> str:
    """The whole id of the session that was typed."""
    return identifiers.session(client, typed)
