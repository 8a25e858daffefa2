"""Fixtures that every tier shares. A real input that is absent skips locally and fails in CI."""

import os
import random
import secrets
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.engine import make_url

from storage import migrate
from storage.index.database import Database
from storage.jobs import control
from storage.tables.models import Base
from tests.support import skips
from tests.support.availability import unavailable
from tests.support.indexes import create_index
from tests.support.servers import Unavailable, s3
from tests.support.servers.moto_server import MotoServer
from tests.support.servers.postgres import PostgresServer
from tests.support.servers.s3 import S3Server

REPO = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("ACTOGRAPH_TEST_SHARED", REPO.parent / "shared"))

for name in [n for n in os.environ if n.startswith("ACTOGRAPH_")]:
    del os.environ[name]
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# an example may take as long as the machine is busy
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")
if "PYTEST_XDIST_WORKER" in os.environ:  # processes that each take all cores wait for one another
    os.environ.setdefault("OMP_NUM_THREADS", "1")


#: a test that waits for longer waits in vain: seconds by tier, fixtures that start servers included
TIME_LIMITS = {"unit": 150, "integration": 600, "e2e": 900, "soak": 1500}


#: fixtures that start a server
SERVERS = {"postgres_server", "own_postgres", "s3_server"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bound each test by its tier unless it has its own limit; mark tests that need servers or models."""
    tiers = Path(__file__).parent
    for item in items:
        tier = item.path.relative_to(tiers).parts[0] if item.path.is_relative_to(tiers) else ""
        if tier in TIME_LIMITS and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIME_LIMITS[tier]))
        if tier == "soak":
            item.add_marker(pytest.mark.soak)
        if tier == "integration" or SERVERS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.integration)
    _draw_covering_cases(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that skips in CI for a reason that nobody accepted."""
    report = yield
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(accepted in reason for accepted in skips.ACCEPTED):
            report.outcome = "failed"
            report.longrepr = f"{reason}; in CI only reasons in tests/support/skips.py may skip a test"
    return report


def _draw_covering_cases(items: list[pytest.Item]) -> None:
    """Leave tests with the mark `covering(n)` n cases, drawn by the test's name; the others are for soak."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("covering") and not item.get_closest_marker("soak"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, found in cases.items():
        mark = found[0].get_closest_marker("covering")
        assert mark is not None
        drawn = random.Random(name).sample(range(len(found)), min(mark.args[0], len(found)))
        for place in set(range(len(found))).difference(drawn):
            found[place].add_marker(pytest.mark.soak)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder with the real GSM8K problems and two trained tiny models."""
    if not (SHARED / "models").is_dir():
        unavailable(f"no real inputs in {SHARED}; set ACTOGRAPH_TEST_SHARED")
    return SHARED


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a Postgres on which databases may be made: TEST_POSTGRES_URL, or a server of our own."""
    if given := os.environ.get("TEST_POSTGRES_URL"):
        yield given
        return
    try:
        server = PostgresServer()
        server.create()
    except Unavailable as error:
        unavailable(str(error))
    yield server.url
    server.remove()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    """An empty index in a file."""
    opened = Database(f"sqlite:///{tmp_path / 'actograph.db'}")
    create_index(opened)
    yield opened
    opened.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.integration)])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """An empty index: once SQLite, once Postgres."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite")
        return
    opened = Database(request.getfixturevalue("postgres_url"))
    yield opened
    opened.close()


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server that one test alone uses, to stop it and start it again."""
    try:
        server = PostgresServer(durable=True)
        server.create()
    except Unavailable as error:
        unavailable(str(error))
    yield server
    server.remove()


@pytest.fixture(scope="session")
def new_postgres(postgres_server: str) -> Iterator[Callable[[], str]]:
    """Makes empty databases that last as long as the tests; returns a URL."""
    server = make_url(postgres_server)
    address = server.set(drivername="postgresql").render_as_string(hide_password=False)
    made: list[str] = []

    def make() -> str:
        made.append(f"actograph_test_{secrets.token_hex(6)}")
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(made[-1])))
        return server.set(database=made[-1]).render_as_string(hide_password=False)

    yield make
    with psycopg.connect(address, autocommit=True) as connection:
        for database in made:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(database)))


@pytest.fixture(scope="session")
def migrated_postgres(new_postgres: Callable[[], str]) -> str:
    """A database at the newest schema; tests use it in turn, through `postgres_url`."""
    database = Database(url := new_postgres())
    migrate.upgrade(database)
    database.close()
    return url


@pytest.fixture
def postgres_url(migrated_postgres: str) -> str:
    """A database at the newest schema with nothing in it."""
    database = Database(migrated_postgres)
    with database.engine.begin() as connection:
        # what an earlier test left open must not hold this one up
        connection.execute(
            sa.text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
        # much faster on small tables than TRUNCATE
        for table in reversed(Base.metadata.sorted_tables):
            connection.execute(sa.delete(table))
    database.close()
    return migrated_postgres


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A running S3 server: moto's; the soak tier has Swift in its place."""
    yield from s3.running(MotoServer())


@pytest.fixture
def s3_environment(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The AWS environment in which boto3 finds the server, and nothing else of this machine."""
    wanted = s3.environment(s3_server.url, os.environ)
    for name in [name for name in os.environ if name not in wanted]:
        monkeypatch.delenv(name)
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def s3_bucket(s3_server: S3Server, s3_environment: None) -> str:
    """Name of a new, empty bucket."""
    return s3_server.new_bucket()


@pytest.fixture
def one_progress_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job logs its progress once, however slow the machine is."""
    monkeypatch.setattr(control, "EVENT_SECONDS", 3600.0)
