"""Settings: their sources and the values that follow from them."""

from pathlib import Path

import pytest

from actograph.settings import Settings


def test_urls_follow_from_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTOGRAPH_HOME", str(tmp_path))
    settings = Settings()
    assert settings.effective_database_url == f"sqlite:///{tmp_path}/actograph.db"
    assert settings.effective_artifact_url == f"file://{tmp_path}/artifacts"
    monkeypatch.setenv("ACTOGRAPH_ARTIFACT_URL", "s3://bucket/prefix")
    assert Settings().effective_artifact_url == "s3://bucket/prefix"


def test_lists_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTOGRAPH_DATA_ROOTS", "/a, /b,")
    assert Settings().data_roots == ("/a", "/b")


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTOGRAPH_API_KEY", "client-secret")
    monkeypatch.setenv("ACTOGRAPH_API_KEYS", "server-secret")
    assert "secret" not in repr(Settings())
