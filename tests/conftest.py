"""Fixtures that every tier shares. A real input that is absent skips locally and fails in CI."""

import os
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("ACTOGRAPH_TEST_SHARED", REPO.parent / "shared"))

for name in [n for n in os.environ if n.startswith("ACTOGRAPH_")]:
    del os.environ[name]
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def unavailable(reason: str) -> None:
    """Skip where a developer lacks something; fail where CI does."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder with the real GSM8K problems and two trained tiny models."""
    if not (SHARED / "models").is_dir():
        unavailable(f"no real inputs in {SHARED}; set ACTOGRAPH_TEST_SHARED")
    return SHARED
