"""What a client sends to hold the queue."""

from pydantic import Field

from actograph.contract.specs import Spec


class PauseRequest(Spec):
    """Why the queue shall stand still; shown to everybody who asks for the queue."""

    reason: str | None = Field(None, min_length=1, max_length=500, pattern=r"^[^\x00]*$")
