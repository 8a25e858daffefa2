"""Links between pages have targets, and the site's navigation lists every page."""

import re
from pathlib import Path

import pytest


def anchors(text: str) -> set[str]:
    """Ids of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_links(pages: dict[Path, str], repository: Path, subtests: pytest.Subtests) -> None:
    contributing = repository / "CONTRIBUTING.md"
    for page, text in {**pages, contributing: contributing.read_text(encoding="utf-8")}.items():
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
            linked = (page.parent / target).resolve() if target else page
            with subtests.test(f"{page}: {target}#{anchor}"):
                assert linked in pages or linked.exists()
                assert not anchor or anchor in anchors(pages[linked])


def test_the_navigation_lists_every_page(pages: dict[Path, str], repository: Path) -> None:
    listed = re.findall(
        r"[\w/-]+\.md$", (repository / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE
    )
    docs = {page.relative_to(repository / "docs").as_posix() for page in pages if page.name != "README.md"}
    assert docs == set(listed)


def test_pages_that_the_code_mentions_exist(pages: dict[Path, str], repository: Path) -> None:
    missing = {
        f"{path.relative_to(repository)}: {name}"
        for room in ("actograph", "api", "storage", "worker", "bench", "tests")
        for path in (repository / room).rglob("*.py")
        for name in re.findall(r"(?<![\w/.])docs/[\w/-]+\.md", path.read_text(encoding="utf-8"))
        if repository / name not in pages
    }
    assert sorted(missing) == []


#: code that pages mention: paths from the top of the repository, and names of Python files
PATH = re.compile(r"`((?:actograph|api|storage|worker|server|bench|tests|training|docs)/[\w/.-]*)`")
FILE = re.compile(r"`(\w+\.py)`")


def missing_paths(text: str, repository: Path) -> list[str]:
    """Paths and Python files that a page mentions and the repository lacks."""
    missing = [path for path in PATH.findall(text) if not (repository / path).exists()]
    rooms = [repository / room for room in ("actograph", "api", "storage", "worker", "bench", "tests")]
    return missing + [name for name in FILE.findall(text) if not any(any(r.rglob(name)) for r in rooms)]


def test_paths_in_the_pages_exist(pages: dict[Path, str], repository: Path) -> None:
    others = [repository / "CONTRIBUTING.md", repository / "CHANGELOG.md"]
    for page, text in {**pages, **{page: page.read_text(encoding="utf-8") for page in others}}.items():
        assert missing_paths(text, repository) == [], page


def test_a_path_that_is_gone_is_found(repository: Path) -> None:
    text = "`api/routes/chat.py`, `api/routes/chats.py`, `chat_watch.py` and `chat_awaiting.py`"
    assert missing_paths(text, repository) == ["api/routes/chats.py", "chat_awaiting.py"]
