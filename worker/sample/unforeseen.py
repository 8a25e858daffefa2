"""Unexpected errors as reasons of failed samples and jobs."""

import logging

from actograph.contract.errors import ActographError

logger = logging.getLogger(__name__)


def unforeseen(error: Exception, doing: str) -> ActographError:
    """An unexpected error as the reason of a failed sample or job; the log has its trace.

    Args:
        doing: for the message, such as "while the sample was scored".
    """
    logger.error("%s: %s", doing, type(error).__name__, exc_info=error)
    return ActographError(f"{type(error).__name__} {doing}: {error}; the worker's log has the trace")
