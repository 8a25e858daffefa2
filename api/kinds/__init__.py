"""A file per kind of job, each with the same three steps from a submitted body to the samples of a job.

*Resolve* turns the body into a spec that needs nothing more: files are found, names are canonical, defaults
are set. *Check* compares the spec with what the service knows, such as the structure of its model. *Expand*
makes the samples. `api/submit.py` takes a body through them.
"""

from types import MappingProxyType
from typing import Any, Protocol

from actograph.contract.analyses import ANALYSIS_KINDS
from api.dependencies import Services
from api.kinds import analyses, capture, chat, evaluation, patch, replay
from api.submission import Submission


class Kind(Protocol):
    """The steps of a kind. All raise ActographErrors that name a field of the body."""

    def resolve(self, services: Services, body: Any, /) -> Any: ...

    def check(self, services: Services, spec: Any, owner: str, /) -> Submission[Any]: ...

    def expand(self, services: Services, submission: Submission[Any], /) -> Submission[Any]: ...


#: lines of batch files come in great numbers: `batch_lines` takes them through the steps of a chat itself
KINDS: MappingProxyType[str, Kind] = MappingProxyType(
    {"evaluation": evaluation, "capture": capture, "replay": replay, "patch": patch, "chat": chat}
    | dict.fromkeys(ANALYSIS_KINDS, analyses)
)
