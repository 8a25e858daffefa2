"""Webhooks: notices to a URL at the end of a job.

A delivery has the form of Standard Webhooks (https://www.standardwebhooks.com). Events have OpenAI's names
if OpenAI has such an event (`batch.completed`).
"""

from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from actograph.contract.base import Resource, Spec

#: ends of jobs and batches
WebhookEvent = Literal[
    "job.completed",
    "job.failed",
    "job.cancelled",
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
]
WEBHOOK_EVENTS: tuple[str, ...] = get_args(WebhookEvent)


class WebhookSpec(Spec):
    """The receiver of a notice when a job ends."""

    url: str | None = Field(
        None,
        max_length=2048,
        description="URL on a host that the service allows; null uses ACTOGRAPH_WEBHOOK_URL.",
    )
    events: list[WebhookEvent] | None = Field(
        None, min_length=1, max_length=len(WEBHOOK_EVENTS), description="Events to send; null sends all."
    )

    @field_validator("url")
    @classmethod
    def _usable(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not value.isascii() or not value.isprintable() or " " in value:
            raise ValueError("the URL must be printable ASCII without spaces; encode other characters")
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("the URL must begin with https:// or http:// and have a host")
        if parts.username is not None or parts.password is not None:
            raise ValueError(
                "the URL must not contain a user name or password; deliveries are signed instead"
            )
        if parts.fragment:
            raise ValueError("the URL must not have a fragment (#...)")
        try:
            _ = parts.port
        except ValueError:
            raise ValueError("the URL's port is not a number from 0 to 65535") from None
        return value

    def wants(self, event: str) -> bool:
        """True if this event is sent."""
        return self.events is None or event in self.events


class WebhookPayload(Resource):
    """The body of a delivery. A retry has the same bytes and the same `webhook-id`."""

    id: str
    object: Literal["event"] = "event"
    type: str = Field(description="The event: `job.completed`, `batch.expired`, ...")
    timestamp: str = Field(description="End of the job, ISO 8601 (UTC).")
    created_at: int = Field(description="The same in Unix seconds.")
    data: dict[str, Any] = Field(
        description="The batch, or the job as `GET /v1/jobs/{id}` shows it, without its spec."
    )
