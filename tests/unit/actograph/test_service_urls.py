"""URLs of database and broker: the right ones work, and each wrong one has its reason."""

from collections.abc import Callable

import pytest

import actograph.cli.main
import api.__main__
import api.keys
import storage.artifacts.__main__
import storage.backup
import storage.index_backup
import storage.migrate
import storage.upkeep.__main__
import worker.__main__
import worker.analysis.__main__
from actograph.service_urls import broker_url, database_url

PG = "postgresql+psycopg://"


def test_databases(subtests: pytest.Subtests) -> None:
    for url, read in {
        "sqlite:////data/index.db": "sqlite:////data/index.db",
        "sqlite:///index.db": "sqlite:///index.db",
        "postgres://lab:p%2Fw@db/acto": f"{PG}lab:p%2Fw@db/acto",
        "postgres://lab:p/w#x@db/acto": f"{PG}lab:p/w#x@db/acto",
        "postgresql://lab:p@db:5433/acto?sslmode=require": f"{PG}lab:p@db:5433/acto?sslmode=require",
        f"{PG}lab:p@[::1]:5432/acto": f"{PG}lab:p@[::1]:5432/acto",
        "postgresql:///acto?host=/run/postgresql": f"{PG}/acto?host=/run/postgresql",
    }.items():
        with subtests.test(url):
            assert database_url(url) == read
    for url, reason in {
        "mysql://lab@db/acto": "mysql:// is no database of Actograph: write sqlite",
        "postgresql+asyncpg://lab@db/acto": r"postgresql\+asyncpg:// is no database",
        "index.db": "a URL without a scheme",
        "postgres://lab:p@db:port/acto": "host or port cannot be read; percent-encode",
        "postgres://lab:s@cret@db/acto": "percent-encode",
        "postgres://lab:s@/cret@db/acto": "percent-encode",
        "postgres://lab:p@db": "names no database",
        "postgres:///acto": "names no host",
        "postgres://lab:p@db/acto?prepare_threshold=0": "remove prepare_threshold",
    }.items():
        with subtests.test(url), pytest.raises(ValueError, match=reason) as refused:
            database_url(url)
        assert "cret" not in str(refused.value)


def test_brokers(subtests: pytest.Subtests) -> None:
    for url in (
        "redis://127.0.0.1:6379/0",
        "redis://:secret@redis",
        "rediss://lab:p%40ss@redis:6380/1?ssl_cert_reqs=required",
    ):
        with subtests.test(url):
            assert broker_url(url) == url
    for url, reason in {
        "unix:///run/redis.sock": "unix:// is no broker of Actograph: write redis",
        "sentinel://a:26379": "sentinel:// is no broker",
        "amqp://guest@rabbit": "amqp:// is no broker",
        "localhost:6379": "without a scheme",
        "redis://:p/w@redis:6379/0": "percent-encode",
        "redis://:p#w@redis:6379/0": "percent-encode",
        "redis://redis:6379/zero": "no database number",
        "redis://": "names no host",
    }.items():
        with subtests.test(url), pytest.raises(ValueError, match=reason):
            broker_url(url)


def test_every_program_says_a_wrong_variable_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    monkeypatch.setenv("ACTOGRAPH_DATABASE_URL", "mysql://lab:cret@db/acto")
    programs: dict[str, Callable[[], object]] = {
        "api": api.__main__.main,
        "api.keys": lambda: api.keys.main(["create", "me"]),
        "storage.artifacts": storage.artifacts.__main__.main,
        "storage.backup": lambda: storage.backup.main(["save", "/nowhere"]),
        "storage.index_backup": lambda: storage.index_backup.main(["due"]),
        "storage.migrate": storage.migrate.main,
        "storage.upkeep": storage.upkeep.__main__.main,
        "worker": worker.__main__.main,
        "worker.analysis": worker.analysis.__main__.main,
        "actograph doctor": lambda: actograph.cli.main.main(["doctor"]),
        "actograph up": lambda: actograph.cli.main.main(["up"]),
    }
    for name, main in programs.items():
        with subtests.test(name):
            try:
                status = main()
            except SystemExit as ended:
                status = ended.code
            said = capsys.readouterr().err
            assert status
            assert said.count("\n") == 1, said
            assert "mysql:// is no database of Actograph" in said
            assert "cret" not in said
