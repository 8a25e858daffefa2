"""Webhooks: who is told when a job ends, and what they are sent.

The form of a delivery is that of Standard Webhooks (https://www.standardwebhooks.com), the names of
events those of OpenAI where it has them (`batch.completed`).
"""

from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from actograph.contract.resources import Resource

#: how jobs and batches end
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


class WebhookSpec(BaseModel):
    """Where a job's end is told.

    Attributes:
        url: `https://` or `http://`, on a host that the service allows; null: the service's own
            (`ACTOGRAPH_WEBHOOK_URL`).
        events: the ends that are told; null: all.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str | None = Field(
        None, max_length=2048, description="On a host that the service allows; null: the service's own."
    )
    events: list[WebhookEvent] | None = Field(
        None, min_length=1, max_length=len(WEBHOOK_EVENTS), description="Ends that are told; null: all."
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
            raise ValueError("the URL must begin with https:// or http:// and name a host")
        if parts.username is not None or parts.password is not None:
            raise ValueError("the URL must hold no user name and no password; deliveries are signed instead")
        if parts.fragment:
            raise ValueError("the URL must have no fragment (#...)")
        try:
            _ = parts.port
        except ValueError:
            raise ValueError("the URL's port is no number from 0 to 65535") from None
        return value

    def wants(self, event: str) -> bool:
        """Whether this end is told."""
        return self.events is None or event in self.events


class WebhookPayload(Resource):
    """The body of a delivery. A repeated delivery has the same bytes and the same `webhook-id`."""

    id: str
    object: Literal["event"] = "event"
    type: str = Field(description="How it ended: `job.completed`, `batch.expired`, ...")
    timestamp: str = Field(description="When the job ended, ISO 8601 (UTC).")
    created_at: int = Field(description="The same in Unix seconds.")
    data: dict[str, Any] = Field(
        description="The job as `GET /v1/jobs/{id}` shows it, without its spec; or the batch."
    )
