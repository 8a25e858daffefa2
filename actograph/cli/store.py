"""`actograph store`: measure, clean and verify the artifact store."""

import secrets
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from actograph.cli import exit_codes
from actograph.cli.flags.options import DryRunOption, FormatOption, client_of
from actograph.cli.output import tables
from actograph.cli.output.output import Format, emit, note
from actograph.contract.errors import ActographError

if TYPE_CHECKING:
    from actograph.contract.resources import StoreGc, StoreProblem, StoreUsage
    from actograph.contract.resources.store import Usage

app = typer.Typer(no_args_is_help=True, help="Measure, clean and verify the artifact store.")

AfterOption = Annotated[
    str | None, typer.Option(metavar="CURSOR", help="Cursor that an interrupted run printed.")
]


@app.command()
def usage(ctx: typer.Context, output: FormatOption = Format.TABLE) -> None:
    """Show stored bytes per owner, and the quotas."""
    with closing(client_of(ctx)) as client:
        found = client.store.usage()
    if output is Format.JSON:
        emit(found.model_dump_json())
        return
    rows = [*(_usage_row(owner.owner or "", owner) for owner in found.owners), _usage_row("all", found)]
    headers = ("OWNER", "SESSIONS", "SIZE", "FILES", "FILE SIZE", "DELETING", "LEFT")
    emit(tables.render(headers, rows, right=headers[1:]))


@app.command()
def gc(
    ctx: typer.Context,
    *,
    dry_run: DryRunOption = False,
    after: AfterOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Delete expired and superseded sessions, broken uploads and other leftovers.

    Files that are not in the index are listed and kept.
    """
    pages: list[StoreGc] = []
    with closing(client_of(ctx)) as client:
        try:
            for page in client.store.collect_garbage(dry_run=dry_run, after=after):
                pages.append(page)
                if output is Format.JSON:
                    emit(page.model_dump_json())
        except (ActographError, KeyboardInterrupt) as error:
            _broken_off(error, pages[-1].next if pages else after, "actograph store gc")
    if output is Format.TABLE:
        emit(_gc_table(pages))


@app.command()
def verify(
    ctx: typer.Context,
    *,
    sample: Annotated[float, typer.Option(min=0.000001, max=1.0, help="Share of stored data to read.")] = 1.0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed that selects the share. Default: random.")
    ] = None,
    after: AfterOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Verify stored files against the index, by checksum.

    Lists missing, damaged and orphaned files, and changes nothing. Exit status 1: there are problems.
    """
    from actograph.progress import meter

    chosen = secrets.randbelow(2**31) if seed is None else seed
    problems: list[StoreProblem] = []
    checked = size = 0
    reached = after
    with closing(client_of(ctx)) as client:
        try:
            with meter("items") as update:
                update("checking", 0, 0)
                for page in client.store.verify(sample=sample, seed=chosen, after=after):
                    checked, size, reached = checked + page.checked, size + page.bytes, page.next
                    problems += page.problems
                    if output is Format.JSON:
                        for problem in page.problems:
                            emit(problem.model_dump_json())
                    # the total of a share is an estimate until the end
                    total = max(page.total, checked) if page.next else checked
                    update("checking", checked, total, len(problems))
        except (ActographError, KeyboardInterrupt) as error:
            share = f" --sample {sample} --seed {chosen}" if sample < 1 else ""
            _report(problems, output)
            _broken_off(error, reached, f"actograph store verify{share}")
    _report(problems, output)
    count = f"{len(problems)} problem{'' if len(problems) == 1 else 's'}"
    note(f"checked {checked}, {tables.size(size)}, {count}")
    if problems:
        kinds = Counter(problem.problem for problem in problems)
        note(", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
        raise exit_codes.Ended(exit_codes.ERROR)


def _usage_row(name: str, used: "Usage | StoreUsage") -> list[str]:
    return [
        name,
        str(used.sessions),
        tables.size(used.session_bytes),
        str(used.files),
        tables.size(used.file_bytes),
        tables.size(used.deleting_bytes),
        "no limit" if used.available_bytes is None else tables.size(used.available_bytes),
    ]


def _report(problems: "Sequence[StoreProblem]", output: Format) -> None:
    if problems and output is Format.TABLE:
        rows = [[problem.id, problem.problem, problem.detail] for problem in problems]
        emit(tables.render(("ID", "PROBLEM", "DETAIL"), rows))


def _broken_off(error: BaseException, cursor: str | None, command: str) -> None:
    """Print the command that continues, and raise. Never returns."""
    note(f"interrupted; continue with: {command}" + (f" --after {cursor}" if cursor else ""))
    if isinstance(error, KeyboardInterrupt):
        raise exit_codes.Ended(exit_codes.INTERRUPTED) from None
    raise error


def _gc_table(pages: "Sequence[StoreGc]") -> str:
    orphans = [one for page in pages for one in page.orphans]
    unknown = [one for page in pages for one in page.unknown]
    rows = [
        ["expired sessions", _sum(pages, "expired_sessions"), tables.size(_sum(pages, "expired_bytes"))],
        ["expired files", _sum(pages, "expired_files"), ""],
        ["superseded sessions and broken uploads", len(orphans), tables.size(sum(o.bytes for o in orphans))],
        ["temporary files and unfinished uploads", _sum(pages, "leftovers"), ""],
    ]
    verb = "TO BE REMOVED" if any(page.dry_run for page in pages) else "REMOVED"
    text = tables.render(
        (verb, "COUNT", "SIZE"), [[str(cell) for cell in row] for row in rows], right=("COUNT", "SIZE")
    )
    if unknown:
        left = [[one.id, tables.size(one.bytes)] for one in unknown]
        text += "\n\n" + tables.render(("KEPT, NOT IN THE INDEX", "SIZE"), left, right=("SIZE",))
    return text


def _sum(pages: "Sequence[StoreGc]", field: str) -> int:
    return sum(getattr(page, field) for page in pages)
