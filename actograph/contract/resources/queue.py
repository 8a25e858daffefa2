"""The queue and what holds it."""

from typing import Literal

from pydantic import Field

from actograph.contract.resources.base import Resource


class QueuePause(Resource):
    """One of the reasons for which the queue may stand still."""

    kind: Literal["manual", "disk", "quota"] = Field(
        description="manual: asked for, and ended by `POST /v1/queue/resume`; disk: the artifact store is "
        "nearly full, ended by free space; quota: what is stored has reached the quota of all, ended by "
        "deletion or expiry."
    )
    reason: str | None = None
    by: str | None = Field(None, description="Who asked: `local`, or `key:` and a digest's beginning.")
    since: int | None = Field(None, description="null where nobody noted when it began.")


class Queue(Resource):
    """What waits and what runs."""

    object: Literal["queue"] = "queue"
    paused: bool = Field(False, description="Workers finish what they hold and begin nothing new.")
    paused_reason: str | None = Field(None, description="Every reason why it is paused, in words.")
    pauses: list[QueuePause] = Field(
        default_factory=list, description="What holds the queue; it goes on once the list is empty."
    )
    jobs: dict[str, int] = Field(description="Number of jobs in each status that is not an end.")
    samples: dict[str, int] = Field(description="pending and leased samples of those jobs.")
    next: list[str] = Field(description="Ids of the next queued jobs, the first one first.")
    messages: int | None = Field(description="Messages in the broker, not taken yet; null if it is away.")
    workers: dict[str, int] = Field(description="Number of workers in each status.")
