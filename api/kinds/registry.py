"""Which file of this package takes which kind of body."""

from types import MappingProxyType
from typing import Any, Protocol

from actograph.contract.analyses.specs import ANALYSIS_KINDS
from api.dependencies import Services
from api.kinds import analyses, capture, chat, evaluation
from api.submission import Submission


class Kind(Protocol):
    """The steps of a kind. All raise ActographErrors that name a field of the body."""

    def resolve(self, services: Services, body: Any, /) -> Any: ...

    def check(self, services: Services, spec: Any, owner: str, /) -> Submission[Any]: ...

    def expand(self, services: Services, submission: Submission[Any], /) -> Submission[Any]: ...


#: lines of batch files come in great numbers: `batch_lines` takes them through the steps of a chat itself
KINDS: MappingProxyType[str, Kind] = MappingProxyType(
    {"evaluation": evaluation, "capture": capture, "chat": chat} | dict.fromkeys(ANALYSIS_KINDS, analyses)
)
