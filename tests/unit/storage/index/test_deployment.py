"""Settings under which machines would not share what they must are refused."""

from pathlib import Path

import pytest

from actograph.contract.errors import ServiceUnavailable
from storage.index.database import Database
from storage.index.deployment import check_store, mark_store


def test_a_worker_needs_the_folder_that_the_api_uses(database: Database, tmp_path: Path) -> None:
    shared, other = (tmp_path / "the shared one").as_uri(), (tmp_path / "other").as_uri()
    mark_store(database, shared)
    check_store(database, shared, patience_seconds=0)
    check_store(database, "s3://bucket/prefix", patience_seconds=0)
    if database.is_sqlite:  # one machine: there is only one folder
        check_store(database, other, patience_seconds=0)
        assert not (tmp_path / "the shared one").exists()
        return
    with pytest.raises(ServiceUnavailable, match="mount one folder on both or use s3://"):
        check_store(database, other, patience_seconds=0)


def test_a_worker_waits_for_an_api_that_starts_beside_it(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = (tmp_path / "artifacts").as_uri()
    monkeypatch.setattr("time.sleep", lambda _: mark_store(database, folder))
    check_store(database, folder)
