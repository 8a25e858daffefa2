"""`actograph workers`, `queue`, `store`, `smoke` and `keys`: for those who run a service."""

import json
import secrets
import time
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from actograph.cli.flags import DryRunOption, IdArgument, QuietOption
from actograph.cli.shell import ERROR, Shell, command, emit, end, note
from actograph.contract.errors import InvalidRequest
from actograph.contract.field_wording import in_words
from actograph.contract.roles import Role
from actograph.progress import meter
from actograph.short_texts import age, memory_text, seconds_of, size
from actograph.tables import Columns, describe, render, text_of

if TYPE_CHECKING:
    from actograph.contract.operations import ApiKey, Worker
    from actograph.smoke import SmokeStep

queue = typer.Typer(no_args_is_help=True, help="Show, pause and resume the queue.")
store = typer.Typer(no_args_is_help=True, help="Measure, clean and verify the artifact store.")
keys = typer.Typer(no_args_is_help=True, help="Create, list and revoke API keys.")


def workers(
    shell: Shell,
    *,
    everything: bool = typer.Option(False, "--all", "-a", help="Include offline workers."),
    quiet: QuietOption = False,
) -> None:
    """List workers, newest first."""
    columns: Columns = (
        "worker id=id", "status", "model", "device", "host=hostname", "pid", "job_id",
        "heartbeat=last_heartbeat_at", "age=started_at",
        ("load memory", lambda worker: _memory(worker, "load")),
        ("run memory", lambda worker: _memory(worker, "run")),
        ("error", lambda worker: worker.error and worker.error.message),
    )  # fmt: skip
    shown = [one for one in shell.client.workers.list() if everything or one.status != "offline"]
    shell.rows(shown, columns, quiet=quiet, everything=True)


def _memory(worker: "Worker", what: str) -> str:
    """Memory of the worker's last load or run."""
    sizes = {when: worker.memory.get(f"{what}_{when}_bytes") for when in ("before", "after", "peak")}
    return memory_text({when: size for when, size in sizes.items() if size is not None})


@command(queue)
def info(shell: Shell) -> None:
    """Show waiting and running work, and active pauses."""
    shell.show(shell.client.queue.get(), lambda found: describe(found, hidden=["paused_reason"]))


@command(queue)
def pause(
    shell: Shell, reason: str | None = typer.Option(None, help="Reason to show with the queue.")
) -> None:
    """Pause the queue. Workers finish their running samples; the API still accepts jobs."""
    shell.show(shell.client.queue.pause(reason), lambda _: "paused")


@command(queue)
def resume(shell: Shell) -> None:
    """Resume the queue."""
    shell.show(
        shell.client.queue.resume(),
        lambda queue: f"still paused: {queue.paused_reason}" if queue.paused else "running",
    )


@command(store)
def usage(shell: Shell) -> None:
    """Show stored bytes per owner, and the quotas."""
    shell.show(shell.client.store.usage())


@command(store)
def gc(shell: Shell, *, dry_run: DryRunOption = False) -> None:
    """Delete expired sessions and uploads, files of deleted ones, and leftovers of killed processes.

    Keeps files that are not in the index; `actograph store verify` lists them.
    """
    counts: Counter[str] = Counter()
    for page in shell.client.store.collect_garbage(dry_run=dry_run):
        counts.update(page.model_dump(exclude={"object", "dry_run", "next"}))
        if shell.json:
            emit(page.model_dump_json())
    if not shell.json:
        rows = [[name.replace("_", " "), text_of(name, count)] for name, count in counts.items()]
        emit(render(("TO BE REMOVED" if dry_run else "REMOVED", ">COUNT"), rows))


@command(store)
def verify(
    shell: Shell,
    *,
    sample: float = typer.Option(1.0, min=0.000001, max=1.0, help="Share of stored data to read."),
    seed: int | None = typer.Option(None, min=0, help="Seed that selects the share. Default: random."),
) -> None:
    """Verify stored files against the index, by checksum.

    Lists missing, damaged and orphaned files, and changes nothing. Exit status 1: there are problems.
    """
    chosen = secrets.randbelow(2**31) if seed is None else seed
    problems, checked, read = [], 0, 0
    try:
        with meter("items") as update:
            for page in shell.client.store.verify(sample=sample, seed=chosen):
                checked, read = checked + page.checked, read + page.bytes
                problems += page.problems
                update("checking", checked, max(page.total, checked) if page.next else checked, len(problems))
    finally:
        # also after an interruption
        if problems:
            shell.rows(problems, ("id", "problem", "detail"), everything=True)
    kinds = Counter(problem.problem for problem in problems)
    found = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "no problems"
    note(f"checked {checked}, {size(read)}: {found}")
    end(ERROR if problems else 0)


def smoke(
    shell: Shell,
    url: str | None = typer.Argument(
        None, help="URL of the service, with the path of a proxy. (default: that of --url)"
    ),
    *,
    model: str | None = typer.Option(None, help="Expected model. (default: the first served model)"),
    timeout: float = typer.Option(600.0, min=1, help="Seconds to wait for each job."),
) -> None:
    """Test a running service: capture, read the activations back, evaluate, and clean up.

    Prints one line per step. The exit status names the kind of failure; see docs/operate/running.md.
    """
    from actograph.smoke import Smoke, SmokeFailed

    shell.options.url = url or shell.options.url

    def report(step: "SmokeStep") -> None:
        line = f"{step.outcome:<6} {step.step:<10} {step.seconds:7.2f} s  {step.detail}"
        emit(json.dumps(asdict(step)) if shell.json else line)

    try:
        Smoke(shell.client, report, model=model, timeout=timeout).run()
    except SmokeFailed as failure:
        end(int(failure.kind))


@command(keys, "create")
def create_key(
    shell: Shell,
    name: str = typer.Argument(help="Name of the key."),
    *,
    role: Role = typer.Option(Role.SUBMIT, help="read, submit or admin."),
    owner: str | None = typer.Option(None, help="Owner of its jobs and sessions. (default: a new owner)"),
    expires_after: str | None = typer.Option(None, help="Lifetime: 90s, 30m, 12h or 7d. (default: no end)"),
    quota_bytes: int | None = typer.Option(
        None, min=1, help="Storage quota of the owner. (default: the service's)"
    ),
) -> None:
    """Create a key and print it, this one time."""
    from pydantic import ValidationError

    from actograph.contract.operations import NewKey

    fields: dict[str, Any] = {"name": name, "role": role, "owner": owner, "quota_bytes": quota_bytes}
    if expires_after is not None:
        fields["expires_after"] = {"seconds": seconds_of(expires_after, "--expires-after")}
    try:
        new = NewKey.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidRequest(f"{first['loc'][0]}: {in_words([first])}") from None
    made = shell.client.keys.create(new)
    if not shell.json:
        note(f"{made.id}: {made.role} of {made.owner}; the key is shown only once")
    shell.show(made, lambda made: str(made.key))


@command(keys, "ls")
def list_keys(
    shell: Shell,
    *,
    everything: bool = typer.Option(False, "--all", "-a", help="Include ended keys."),
    quiet: QuietOption = False,
) -> None:
    """List keys, newest first."""
    shown = [key for key in shell.client.keys.list() if everything or _state(key) == "good"]
    columns: Columns = (
        "key id=id", "name", "role", "owner", "begins=prefix", ("state", _state),
        ("last used", lambda key: "never" if key.last_used_at is None else age(key.last_used_at)),
        "age=created_at",
    )  # fmt: skip
    shell.rows(shown, columns, quiet=quiet, everything=True)


@command(keys)
def revoke(shell: Shell, key: IdArgument) -> None:
    """Revoke a key for good. Keeps the owner's data."""
    shell.show(shell.client.keys.revoke(shell.id("key", key)), lambda key: str(key.id))


def _state(key: "ApiKey") -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= time.time() else "good"
