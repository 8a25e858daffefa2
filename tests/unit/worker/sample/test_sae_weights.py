"""Weights of an SAE for the engine: the local store's own file, or a copy that goes with its last user."""

import gc
from pathlib import Path
from typing import Any

import pytest

from actograph.contract.errors import StoreDamaged
from storage.artifacts.checked_files import CheckedFile
from storage.artifacts.local import LocalStore
from storage.index.ids import new_file_id
from worker.sample.saes import SaeWeights


class Remote:
    """A store whose files have no path here."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def local_path(self, key: str) -> Path | None:
        return None


def test_a_file_of_a_remote_store_is_copied_while_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store, key = LocalStore(tmp_path / "store"), f"files/{new_file_id()}"
    size, sha256 = store.put_stream(key, [b"weights ", b"of an SAE"])
    local = SaeWeights(store, CheckedFile(store, key, size=size, sha256=sha256))
    assert local.path == store.local_path(key)
    remote: Any = Remote(store)
    copy = SaeWeights(remote, CheckedFile(remote, key, size=size, sha256=sha256))
    assert copy.path != local.path and copy.path.read_bytes() == b"weights of an SAE"
    path = copy.path
    del copy, local
    gc.collect()
    assert not path.exists() and store.exists(key), "the store's own stays"
    for damaged in (store, remote):
        with pytest.raises(StoreDamaged, match="its sha256 is not the recorded one"):
            SaeWeights(damaged, CheckedFile(damaged, key, size=size, sha256="0" * 64))
    gc.collect()
    assert list(tmp_path.glob("actograph-sae-*")) == []
