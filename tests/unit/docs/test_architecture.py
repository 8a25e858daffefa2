"""The page on the architecture names files that exist."""

import re
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
ROOMS = ("actograph", "api", "bench", "evals", "storage", "tests", "training", "worker")


def test_every_named_file_exists() -> None:
    """In backquotes: a path from the top, or a file in the folder that the line named last."""
    missing, count = [], 0
    for line in (REPO / "docs/architecture.md").read_text().splitlines():
        folder = REPO
        for name in re.findall(r"`([\w./]+)`", line):
            path = REPO / name
            if name.startswith(ROOMS) and "/" in name:
                folder = path if path.is_dir() else path.parent
            elif name.endswith((".py", ".js", ".yml")) and name != "__init__.py":
                path = path if path.exists() else folder / name
            else:
                continue
            count += 1
            if not path.exists():
                missing.append(name)
    assert missing == []
    assert count > 40
