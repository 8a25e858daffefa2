"""Options of `actograph sessions` that select sessions."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.cli.flags import identifiers
from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from actograph.client import Client
    from actograph.client.queries import SessionQuery

EveryOption = Annotated[bool, typer.Option("--all", help="All sessions.")]
FILTERS: dict[str, Any] = {
    "job": Annotated[
        str | None,
        typer.Option("--job", help="Sessions of this job."),
    ],
    "model": Annotated[str | None, typer.Option(help="Sessions of this model.")],
    "condition": Annotated[str | None, typer.Option(help="Sessions of this condition.")],
    "sample_index": Annotated[int | None, typer.Option(help="Sessions of this dataset row.")],
    "correct": Annotated[
        bool | None, typer.Option("--correct/--incorrect", help="Verdict of the first scorer.")
    ],
    "tag": Annotated[str | None, typer.Option("--tag", help="Sessions with this tag.")],
    "owner": Annotated[str | None, typer.Option(help="Sessions of this owner.")],
    "pinned": Annotated[
        bool | None, typer.Option("--pinned/--not-pinned", help="Pinned sessions, or those without a pin.")
    ],
}


def query(client: "Client", filters: Mapping[str, Any]) -> "SessionQuery":
    """Return the filters of `FILTERS`, with the full id of the job."""
    wanted: SessionQuery = {
        "job_id": None if filters["job"] is None else identifiers.job(client, filters["job"]),
        "model": filters["model"],
        "condition": filters["condition"],
        "sample_index": filters["sample_index"],
        "correct": filters["correct"],
        "tag": filters["tag"],
        "owner": filters["owner"],
        "pinned": filters.get("pinned"),
    }
    return wanted


def check_choice(ids: list[str] | None, wanted: "SessionQuery", *, everything: bool) -> None:
    """Require exactly one of ids, filters and `--all`.

    Raises:
        InvalidRequest: none or several of them were given.
    """
    filtered = any(value is not None for value in wanted.values())
    if bool(ids) + filtered + everything != 1:
        raise InvalidRequest("choose sessions by id, by filters such as --job and --tag, or with --all")
