"""The end of a worker whose version does not fit the schema that the index gets."""

import logging
from collections.abc import Callable

from sqlalchemy.orm import Session

from storage import migrate
from storage.index import rollout

logger = logging.getLogger(__name__)


class SchemaWatch:
    """Ends a worker once another schema is announced; a part of its heartbeat."""

    def __init__(self, end: Callable[[str], object]) -> None:
        """`end` takes the reason."""
        self._end = end
        self._own = migrate.head()
        self._has_told = False

    def check(self, session: Session) -> None:
        """Read the announced schema."""
        found = rollout.announced(session)
        if found is None or found[0] == self._own or self._has_told:
            return
        self._has_told = True
        state = "was migrated" if found[1] else "is to be migrated"
        reason = (
            f"the index {state} to schema {found[0]}, and this version has {self._own}: the worker ends what "
            "it runs and exits; install the version of the API"
        )
        logger.warning("%s", reason)
        self._end(reason)
