"""One action on several items."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from actograph.cli import exit_codes
from actograph.cli.output.output import Format, emit, note
from actograph.contract.errors import ActographError

if TYPE_CHECKING:
    from actograph.contract.resources import Deleted, Job, Session


def each(
    typed: list[str], act: "Callable[[str], Job | Session | Deleted]", output: Format = Format.TABLE
) -> None:
    """Act on each item and print its id, or the item as JSON. Failures do not stop the others."""
    failed = exit_codes.OK
    for name in typed:
        try:
            done = act(name)
            emit(done.model_dump_json() if output is Format.JSON else done.id)
        except ActographError as error:
            note(f"{name}: {error}")
            failed = max(failed, exit_codes.of_error(error))
    if failed:
        raise exit_codes.Ended(failed)
