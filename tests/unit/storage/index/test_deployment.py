"""Settings under which machines would not share what they must are refused."""

from pathlib import Path

import pytest

from actograph.contract.errors import ServiceUnavailable
from storage.index.database import Database
from storage.index.deployment import check_index, check_store, filesystem_of, mark_store

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb1 /home/local ext4 rw 0 0
//nas/my\\040files /mnt/my\\040files cifs rw 0 0
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    path = tmp_path / "mounts"
    path.write_text(MOUNTS)
    return path


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/a.db", "ext4"),
        ("/home/me/a.db", "nfs4"),
        ("/home/local/a.db", "ext4"),
        ("/mnt/my files/a.db", "cifs"),
        ("/homes/a.db", "ext4"),
    ],
)
def test_the_innermost_mount_tells_the_file_system(mounts: Path, path: str, kind: str) -> None:
    assert filesystem_of(Path(path), mounts) == kind


def test_sqlite_on_a_network_file_system_is_refused(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'index.db'}")
    mounts = tmp_path / "mounts"
    for kind in ("ext4", "nfs4"):
        mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nsomewhere {tmp_path} {kind} rw 0 0\n")
        if kind == "ext4":
            check_index(database, mounts)
        else:
            with pytest.raises(ServiceUnavailable, match=r"network file system \(nfs4\).*Postgres"):
                check_index(database, mounts)
    database.close()


def test_a_worker_needs_the_folder_that_the_api_uses(database: Database, tmp_path: Path) -> None:
    shared, other = (tmp_path / "the shared one").as_uri(), (tmp_path / "other").as_uri()
    mark_store(database, shared)
    check_store(database, shared, patience_seconds=0)
    check_store(database, "s3://bucket/prefix", patience_seconds=0)
    if database.is_sqlite:  # one machine: there is only one folder
        check_store(database, other, patience_seconds=0)
        assert not (tmp_path / "the shared one").exists()
        return
    slept: list[float] = []
    with pytest.raises(ServiceUnavailable, match="mount one folder on both or use s3://"):
        check_store(database, other, patience_seconds=1, sleep=slept.append)
    assert sum(slept) == pytest.approx(1)


def test_a_worker_waits_for_an_api_that_starts_beside_it(database: Database, tmp_path: Path) -> None:
    folder = (tmp_path / "artifacts").as_uri()
    check_store(database, folder, sleep=lambda _: mark_store(database, folder))
