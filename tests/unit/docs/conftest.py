"""Pages of the docs and their fenced blocks."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
PAGES = [REPO / "README.md", *sorted((REPO / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def name_of(page: Path) -> str:
    """A page's path inside the repository."""
    return page.relative_to(REPO).as_posix()


@dataclass(frozen=True)
class Block:
    """A fenced block and where it begins."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


@pytest.fixture(scope="session")
def pages() -> list[Path]:
    return PAGES


@pytest.fixture(scope="session")
def blocks() -> Callable[[str], list[Block]]:
    """Fenced blocks of one language."""

    def find(language: str) -> list[Block]:
        found = []
        for page in PAGES:
            text = page.read_text(encoding="utf-8")
            for fence in FENCE.finditer(text):
                if fence[1] == language:
                    line = text.count("\n", 0, fence.start()) + 1
                    found.append(Block(name_of(page), line, language, fence[2]))
        assert found, f"no page has a block of {language}"
        return found

    return find


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPO


@pytest.fixture(scope="session")
def prose() -> dict[str, str]:
    """Each page without its fenced blocks."""
    return {name_of(page): FENCE.sub("", page.read_text(encoding="utf-8")) for page in PAGES}
