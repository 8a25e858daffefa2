"""`actograph keys`: API keys and their roles, for admins."""

import time
from typing import TYPE_CHECKING, Any

import typer

from actograph.cli.flags import (
    FormatOption,
    IdArgument,
    QuietOption,
    connect,
    full_id,
    seconds_of,
)
from actograph.cli.output import Format, age, emit, emit_item, emit_list, note
from actograph.contract.errors import InvalidRequest
from actograph.roles import Role

if TYPE_CHECKING:
    from actograph.contract.operations import ApiKey

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke API keys.")


@app.command()
def create(
    ctx: typer.Context,
    name: str = typer.Argument(help="Name of the key."),
    *,
    role: Role = typer.Option(Role.SUBMIT, help="read, submit or admin."),
    owner: str | None = typer.Option(None, help="Owner of its jobs and sessions. (default: a new owner)"),
    expires_in: str | None = typer.Option(None, help="Lifetime: 90s, 30m, 12h or 7d. (default: no end)"),
    quota_bytes: int | None = typer.Option(
        None, min=1, help="Storage quota of the owner. (default: the service's)"
    ),
    output: FormatOption = Format.TABLE,
) -> None:
    """Create a key and print it. It is shown once."""
    from pydantic import ValidationError

    from actograph.contract.operations import NewKey

    fields: dict[str, Any] = {"name": name, "role": role, "owner": owner, "quota_bytes": quota_bytes}
    if expires_in is not None:
        fields["expires_after"] = {"seconds": seconds_of(expires_in, "--expires-in")}
    try:
        new = NewKey.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidRequest(f"{first['loc'][0]}: {first['msg']}") from None
    with connect(ctx) as client:
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
    everything: bool = typer.Option(False, "--all", "-a", help="Include ended keys."),
    quiet: QuietOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """List keys, newest first."""
    columns = {
        "KEY ID": lambda key: key.id,
        "NAME": lambda key: key.name,
        "ROLE": lambda key: key.role,
        "OWNER": lambda key: key.owner,
        "BEGINS": lambda key: key.prefix,
        "STATE": _state,
        "LAST USED": lambda key: "never" if key.last_used_at is None else age(key.last_used_at),
        "AGE": lambda key: age(key.created_at),
    }
    with connect(ctx) as client:
        keys = [key for key in client.keys.list() if everything or _state(key) == "good"]
    emit_list(keys, columns, output, quiet=quiet, everything=True)


@app.command()
def revoke(ctx: typer.Context, key: IdArgument, output: FormatOption = Format.TABLE) -> None:
    """Revoke a key for good. The owner's data is kept."""
    with connect(ctx) as client:
        revoked = client.keys.revoke(full_id(key, "key", lambda _: client.keys.list()))
    emit_item(revoked, output, lambda key: str(key.id))


def _state(key: "ApiKey") -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= time.time() else "good"
