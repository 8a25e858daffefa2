"""Pages and their fenced blocks, which tests get by the fixtures `page` and `<language>_block`."""

import re
from collections.abc import Iterator
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


def _blocks(language: str) -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in FENCE.finditer(text):
            if found[1] == language:
                yield Block(name_of(page), text.count("\n", 0, found.start()) + 1, language, found[2])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name in metafunc.fixturenames:
        if name == "page":
            metafunc.parametrize("page", PAGES, ids=[name_of(page) for page in PAGES])
        elif name.endswith("_block"):
            found = list(_blocks(name.removesuffix("_block")))
            assert found, f"no page has a block of {name}"
            metafunc.parametrize(name, found, ids=[f"{block.page}:{block.line}" for block in found])


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPO


@pytest.fixture
def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))
