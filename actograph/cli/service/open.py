"""`actograph open`: the dashboard of a running service in the browser."""

import webbrowser
from contextlib import closing
from typing import Annotated

import typer

from actograph.cli.flags.options import client_of
from actograph.cli.output.output import emit, note
from actograph.contract.errors import InvalidRequest

#: first part of an id -> address of its page
PAGES = {"job": "/jobs/", "ses": "/sessions/"}


def open_dashboard(
    ctx: typer.Context,
    item: Annotated[str, typer.Argument(metavar="[ID]", help="A job or session, in full.")] = "",
    *,
    only_print: Annotated[bool, typer.Option("--print", help="Print the address only.")] = False,
) -> None:
    """Open the dashboard, or the page of a job or session, in a browser."""
    with closing(client_of(ctx)) as client:
        address = client.base_url.rstrip("/") + path_of(item)
    emit(address)
    if not only_print and not webbrowser.open(address):
        note("no browser can be started here; open the address by hand")


def path_of(item: str) -> str:
    """The page of an item: `/` for "".

    Raises:
        InvalidRequest: the id is no job's and no session's.
    """
    if not item:
        return "/"
    kind, _, digits = item.partition("_")
    if kind not in PAGES or len(digits) != 32 or not digits.isalnum():
        raise InvalidRequest(f"{item!r} is no job and no session; ids look like job_<32 hex digits>")
    return PAGES[kind] + item
