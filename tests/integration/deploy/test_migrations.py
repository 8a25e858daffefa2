"""Deployments whose version migrates the index, and the way back: real migrations, and a small service."""

import re
import shutil
import sqlite3
import sysconfig
from contextlib import closing
from pathlib import Path

import pytest

from storage import migrate
from tests.integration.deploy.conftest import FILES, Desk

pytestmark = pytest.mark.soak
REPO = Path(__file__).parents[3]
MIGRATION = f'''\
"""A migration of the next version."""

from alembic import op

revision, down_revision = "9001", "{migrate.head()}"


def upgrade() -> None:
    op.execute("CREATE TABLE next (id INTEGER)")
'''
#: as `up` does
MIGRATE = """
import subprocess

home = dict(os.environ, ACTOGRAPH_HOME=options["--home"])
if subprocess.run([sys.executable, "-m", "storage.migrate"], env=home, stdout=2).returncode:
    sys.exit("error: the database could not be migrated")
"""


@pytest.fixture
def desk(desk: Desk) -> Desk:
    """A checkout whose service has the real index."""
    ignored = shutil.ignore_patterns("__pycache__", "cli", "deploy", "__main__.py")
    for room in ("actograph", "storage"):
        shutil.copytree(REPO / room, desk.checkout / room, dirs_exist_ok=True, ignore=ignored)
    first, options, rest = FILES["actograph/__main__.py"].partition("sys.argv[3::2]))\n")
    (desk.checkout / "actograph/__main__.py").write_text(first + options + MIGRATE + rest)
    (desk.site / "ours.pth").write_text(sysconfig.get_path("purelib"))
    return desk


def index(file: Path) -> tuple[str, set[str]]:
    """Schema and notes of an index."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as found:
        ((schema,),) = found.execute("SELECT version_num FROM alembic_version")
        # a migration is announced to workers of other versions in a row of its own
        names = found.execute("SELECT name FROM state WHERE name <> 'schema'")
        return schema, {name for (name,) in names}


def record(desk: Desk, name: str) -> None:
    with closing(sqlite3.connect(desk.root / "home" / "actograph.db")) as found:
        found.execute("INSERT INTO state (name, at) VALUES (?, 0)", [name])
        found.commit()


def next_version(desk: Desk) -> None:
    (desk.checkout / "storage/index/migrations/versions/9001_next.py").write_text(MIGRATION)


def kept(desk: Desk) -> Path:
    """The replaced index, as the last message names it."""
    found = re.search(
        r"the index was restored from (\S+); the one that it replaced is kept in (\S+\.db)", desk.said
    )
    assert found, desk.said
    assert Path(found[1]).parent == Path(found[2]).parent == desk.root / "home" / "index-backups"
    return Path(found[2])


def test_a_migration_is_undone_by_a_failed_start_and_by_a_rollback(desk: Desk) -> None:
    ours = desk.root / "home" / "actograph.db"
    head = migrate.head()
    assert desk.deploy("--model", "demo") == 0, desk.said
    assert "migrates the index" not in desk.said, "it is new"
    record(desk, "before")

    next_version(desk)
    assert desk.deploy("--model", "broken") == 1
    assert index(kept(desk)) == ("9001", {"before"})
    assert desk.said.splitlines()[-1].endswith("release 1 serves again")
    assert desk.served()["options"]["--model"] == "demo"
    assert index(ours) == (head, {"before"})

    assert desk.deploy() == 0, desk.said
    assert f"release 2 migrates the index from schema {head}; backup: {desk.root}" in desk.said
    record(desk, "between")
    assert desk.run("rollback") == 0, desk.said
    assert desk.said.splitlines()[-1].startswith("release 1 serves; the index was restored from ")
    assert index(kept(desk)) == ("9001", {"before", "between"})
    assert index(ours) == (head, {"before"})
    assert desk.served()["pid"]


def test_a_rollback_that_fails_and_one_without_a_backup(desk: Desk) -> None:
    ours = desk.root / "home" / "actograph.db"
    head = migrate.head()
    assert desk.deploy("--model", "demo") == 0, desk.said
    next_version(desk)
    assert desk.deploy() == 0, desk.said
    record(desk, "between")
    # the index goes forth again with the release
    source = next(path for path in (desk.root / "versions").iterdir() if not list(path.rglob("9001_next.py")))
    program = source / "actograph" / "__main__.py"
    text = program.read_text()
    program.write_text("raise SystemExit('error: damaged')\n")
    assert desk.run("rollback") == 1
    assert desk.said.splitlines()[-1].endswith("release 2 serves again")
    assert index(ours) == ("9001", {"between"})
    assert desk.served()["pid"]
    program.write_text(text)
    for release, schema in ((1, head), (2, "9001"), (1, head)):
        assert desk.run("rollback") == 0, desk.said
        assert f"release {release} serves" in desk.said
        assert index(ours) == (schema, set())

    assert desk.deploy("--no-backup", "--env", "A=1") == 0, desk.said
    assert f"release 3 migrates the index from schema {head}; backup: none" in desk.said
    pid = desk.served()["pid"]
    assert desk.run("rollback") == 1
    assert "release 3 migrated the index without a backup, and release 1 does not know" in desk.said
    assert desk.served()["pid"] == pid


def test_an_index_that_cannot_be_copied_is_not_migrated(desk: Desk) -> None:
    assert desk.deploy("--model", "demo") == 0, desk.said
    next_version(desk)
    (desk.root / "home" / "index-backups").touch()
    assert desk.deploy() == 1
    assert "the index was not copied: " in desk.said
    assert "; --no-backup migrates without a copy" in desk.said
    assert desk.said.splitlines()[-1].endswith("release 1 serves again")
    assert index(desk.root / "home" / "actograph.db") == (migrate.head(), set())
