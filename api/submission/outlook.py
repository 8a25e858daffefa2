"""What awaits a job that is about to be submitted, read from the index in one go."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from actograph.contract.resources import ModelStructure
from api.dependencies import Services
from storage.accounts import quotas
from storage.accounts.quotas import Quotas
from storage.queue import routing
from storage.submission import admission


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """How things stood when it was read."""

    #: None where no worker has loaded the model yet
    structure: ModelStructure | None
    #: last reported memory of each live worker that holds the model
    memory: list[dict[str, int]]
    quotas: Quotas
    #: where the job's message goes
    queue: str
    #: the place that the job takes
    place: int
    #: why it will wait in vain, None where somebody can serve it
    waiting_reason: str | None


def read(services: Services, session: Session, model: str, priority: int) -> Outlook:
    """For a job of this model; `session` is a transaction for reading."""
    found = admission.read(session, model, priority)
    held = found.is_held
    return Outlook(
        structure=services.structures.of(session, model, found.loaded_at),
        memory=found.memory,
        quotas=quotas.read(session, services.settings, has_own_limits=found.has_own_limits),
        queue=routing.holders_queue(model) if held else routing.loaders_queue(model),
        place=found.place,
        waiting_reason=None if held else routing.fleet(session).why_unserved(model),
    )
