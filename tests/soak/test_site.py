"""The documentation builds into a site without a warning."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

REPO = Path(__file__).resolve().parents[2]


def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the extra `docs` is not installed")
    shutil.copytree(REPO / "docs", tmp_path / "docs")
    shutil.copy(REPO / "mkdocs.yml", tmp_path)
    # not --quiet: what is not logged is no warning, and so --strict passes
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    for page in ("index.html", "start/night/index.html", "reference/http/index.html"):
        assert (tmp_path / "site" / page).is_file()
