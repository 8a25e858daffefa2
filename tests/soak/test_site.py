"""The documentation builds into a site without a warning."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

REPO = Path(__file__).resolve().parents[2]


def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the extra `docs` is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    ended = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    for page in ("index.html", "start/night/index.html", "reference/http/index.html"):
        assert (tmp_path / page).is_file()
