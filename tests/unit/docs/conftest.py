"""Pages of the docs and their fenced blocks."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


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
def pages() -> dict[Path, str]:
    """Texts of all pages."""
    files = [REPO / "README.md", *sorted((REPO / "docs").rglob("*.md"))]
    return {file: file.read_text(encoding="utf-8") for file in files}


@pytest.fixture(scope="session")
def blocks(pages: dict[Path, str]) -> Callable[[str], list[Block]]:
    """Fenced blocks of one language."""

    def find(language: str) -> list[Block]:
        found = []
        for page, text in pages.items():
            for fence in FENCE.finditer(text):
                if fence[1] == language:
                    line = text.count("\n", 0, fence.start()) + 1
                    found.append(Block(page.relative_to(REPO).as_posix(), line, language, fence[2]))
        assert found, f"no page has a block of {language}"
        return found

    return find


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPO


@pytest.fixture(scope="session")
def prose(pages: dict[Path, str]) -> dict[str, str]:
    """Each page without its fenced blocks."""
    return {page.relative_to(REPO).as_posix(): FENCE.sub("", text) for page, text in pages.items()}
