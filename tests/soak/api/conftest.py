"""Fixtures of the API tests."""

from tests.integration.api.conftest import (
    index_url,
    keyed,
    problem,
    pytest_generate_tests,
    run,
    service,
    settings,
    start,
    url,
)

__all__ = [
    "index_url",
    "keyed",
    "problem",
    "pytest_generate_tests",
    "run",
    "service",
    "settings",
    "start",
    "url",
]
