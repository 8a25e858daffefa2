"""Tab completion of ids and model names, from the service.

The shell waits for it, so it takes a second at most. Without a service or a valid key there are no
completions.
"""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import typer

from actograph.contract.errors import ActographError

if TYPE_CHECKING:
    from actograph.client import Client

SECONDS = 1.0
#: maximum number of completions
SHOWN = 50


def jobs(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Ids of jobs, with kind, model and status."""

    def found(client: "Client") -> Iterator[tuple[str, str]]:
        for job in islice(client.jobs.list(page_size=SHOWN), SHOWN):
            yield job.id, f"{job.kind} of {job.model}, {job.status}"

    return _offered(ctx, incomplete, found)


def sessions(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Ids of sessions, with their job's sample."""

    def found(client: "Client") -> Iterator[tuple[str, str]]:
        for session in islice(client.sessions.list(page_size=SHOWN), SHOWN):
            condition = f", {session.condition}" if session.condition else ""
            yield session.id, f"sample {session.sample_index}{condition} of {session.job_id}"

    return _offered(ctx, incomplete, found)


def batches(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Ids of batches, with endpoint and status."""

    def found(client: "Client") -> Iterator[tuple[str, str]]:
        for batch in islice(client.batches.list(), SHOWN):
            yield batch.id, f"{batch.endpoint}, {batch.status}"

    return _offered(ctx, incomplete, found)


def models(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Names of the served models."""
    return _offered(ctx, incomplete, lambda client: ((model.id, "") for model in client.models.list()))


def _offered(ctx: typer.Context, incomplete: str, found: Any) -> list[tuple[str, str]]:
    from actograph.cli.flags.options import load_settings
    from actograph.client import Client

    given = ctx.find_root().params
    try:
        settings = load_settings()
        url, key = given.get("url") or settings.effective_url, given.get("api_key") or settings.api_key
        with Client(url, key, timeout=SECONDS, retries=0) as client:
            return [(name, about) for name, about in found(client) if name.startswith(incomplete)]
    except ActographError:
        return []
