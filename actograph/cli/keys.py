"""`actograph keys`: API keys and their roles, for admins."""

import time
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from actograph.cli.flags.durations import seconds_of
from actograph.cli.flags.identifiers import resolve
from actograph.cli.flags.options import FormatOption, NoTruncOption, QuietOption, client_of
from actograph.cli.output import tables
from actograph.cli.output.output import Format, emit, emit_list, note
from actograph.contract.service.key_roles import Role

if TYPE_CHECKING:
    from actograph.contract.service.keys import ApiKey

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke API keys.")

HEADERS = ("KEY ID", "NAME", "ROLE", "OWNER", "BEGINS", "STATE", "LAST USED", "AGE")


@app.command()
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the key.")],
    *,
    role: Annotated[Role, typer.Option(help="read, submit or admin.")] = Role.SUBMIT,
    owner: Annotated[
        str | None, typer.Option(help="Owner of its jobs and sessions. (default: a new owner)")
    ] = None,
    expires_in: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Lifetime: 90s, 30m, 12h or 7d. (default: no end)")
    ] = None,
    quota_bytes: Annotated[
        int | None, typer.Option(min=1, help="Storage quota of the owner. (default: the service's)")
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Create a key and print it. It is shown once."""
    from pydantic import ValidationError

    from actograph.contract.errors import InvalidRequest
    from actograph.contract.service.keys import NewKey
    from actograph.contract.specs import ExpiresAfter

    span = None if expires_in is None else ExpiresAfter(seconds=seconds_of(expires_in, "--expires-in"))
    try:
        new = NewKey(
            name=name,
            role=role,
            owner=owner,
            expires_after=span,
            quota_bytes=quota_bytes,
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidRequest(f"{first['loc'][0]}: {first['msg']}") from None
    with closing(client_of(ctx)) as client:
        made = client.keys.create(new)
    if output is Format.JSON:
        emit(made.model_dump_json())
        return
    note(f"{made.id}: {made.role} of {made.owner}; the key is shown only once")
    emit(made.key)


@app.command()
def ls(
    ctx: typer.Context,
    *,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include ended keys.")] = False,
    quiet: QuietOption = False,
    no_trunc: NoTruncOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """List keys, newest first."""
    with closing(client_of(ctx)) as client:
        keys = [key for key in client.keys.list() if everything or _state(key) == "good"]

    def table(keys: "Sequence[ApiKey]") -> str:
        return tables.render(HEADERS, [_row(key, full=no_trunc) for key in keys])

    emit_list(keys, table, output, quiet=quiet, full=no_trunc)


@app.command()
def revoke(
    ctx: typer.Context,
    key: Annotated[str, typer.Argument(help="Id, or a unique prefix.")],
    output: FormatOption = Format.TABLE,
) -> None:
    """Revoke a key for good. The owner's data is kept."""
    with closing(client_of(ctx)) as client:
        revoked = client.keys.revoke(resolve(key, "key", lambda _: (one.id for one in client.keys.list())))
    emit(revoked.model_dump_json() if output is Format.JSON else revoked.id)


def _row(key: "ApiKey", *, full: bool) -> list[str]:
    used = "never" if key.last_used_at is None else tables.age(key.last_used_at)
    return [
        tables.shorten(key.id, full=full),
        key.name,
        key.role,
        key.owner,
        key.prefix,
        _state(key),
        used,
        tables.age(key.created_at),
    ]


def _state(key: "ApiKey") -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= time.time() else "good"
