"""The options by which `actograph sessions` chooses sessions, and what they ask of the service."""

from typing import TYPE_CHECKING, Annotated

import typer

from actograph.cli import identifiers
from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from actograph.client import Client
    from actograph.client.session_calls import SessionQuery

JobOption = Annotated[str | None, typer.Option("--job", help="Sessions of this job (id or its beginning).")]
ModelOption = Annotated[str | None, typer.Option(help="Sessions of this model.")]
ConditionOption = Annotated[str | None, typer.Option(help="Sessions of this condition.")]
SampleOption = Annotated[int | None, typer.Option(help="Sessions of this row of the dataset.")]
CorrectOption = Annotated[
    bool | None, typer.Option("--correct/--incorrect", help="By the verdict of the first scorer.")
]
TagOption = Annotated[str | None, typer.Option("--tag", help="Sessions with this tag.")]
OwnerOption = Annotated[str | None, typer.Option(help="Sessions of this owner.")]
PinnedOption = Annotated[bool | None, typer.Option("--pinned/--not-pinned", help="By their pin.")]


def query(
    client: "Client",
    *,
    job: str | None,
    model: str | None,
    condition: str | None,
    sample_index: int | None,
    correct: bool | None,
    tag: str | None,
    owner: str | None,
    pinned: bool | None,
) -> "SessionQuery":
    """The filters that were given. Raises what resolving the job's id does."""
    given: SessionQuery = {
        "job_id": identifiers.resolve(job, "job", (found.id for found in client.jobs()))
        if job is not None
        else None,
        "model": model,
        "condition": condition,
        "sample_index": sample_index,
        "correct": correct,
        "tag": tag,
        "owner": owner,
        "pinned": pinned,
    }
    return given


def check_choice(ids: list[str], *, filtered: bool, everything: bool) -> None:
    """Sessions are named by id, or by filter, or all of them.

    Raises:
        InvalidRequest: by none of these, or by more than one.
    """
    if bool(ids) + filtered + everything != 1:
        raise InvalidRequest("name sessions by id, or by filters such as --job and --tag, or say --all")
