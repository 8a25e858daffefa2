"""Pieces of staged files are reported while they are written and hashed."""

import hashlib
from pathlib import Path

import pytest

from storage.artifacts.factory import open_store
from worker.sample.watched_store import watched

PREFIX = "sessions/ses_" + "0" * 32


@pytest.mark.soak
def test_writing_and_hashing_report_every_piece(tmp_path: Path) -> None:
    reported: list[None] = []
    store = watched(open_store(tmp_path.as_uri()), lambda: reported.append(None))
    data = bytes(100 << 20)
    with store.stage(PREFIX) as stage:
        with stage.create("activations.safetensors") as file:
            assert file.write(data) == len(data)
            written = len(reported)
            assert written >= 3
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256")  # type: ignore[arg-type]
            assert digest.digest() == hashlib.sha256(data).digest()
            assert len(reported) - written >= 100
        with stage.create("manifest.json") as file:
            file.write(b"{}")
        stage.commit()
    assert store.size(f"{PREFIX}/activations.safetensors") == len(data)
    assert store.exists(PREFIX)
