"""Fixtures of the integration tests, with Swift in place of moto's S3 server."""

from collections.abc import Iterator

import pytest

from tests.integration.conftest import (
    engine,
    eventually,
    inspect,
    lm_eval,
    redis_process,
    redis_url,
    slow,
    trained,
)
from tests.support.servers import s3
from tests.support.servers.s3 import S3Server
from tests.support.servers.swift import SwiftServer

__all__ = ["engine", "eventually", "inspect", "lm_eval", "redis_process", "redis_url", "slow", "trained"]


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A running Swift, which checks signatures and checksums and survives a stop."""
    yield from s3.running(SwiftServer())
