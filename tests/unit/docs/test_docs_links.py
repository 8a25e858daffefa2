"""Links between pages have targets, and the site's navigation lists every page."""

import re
from pathlib import Path

import pytest


def anchors(text: str) -> set[str]:
    """Ids of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_links(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked.read_text(encoding="utf-8")), f"{target}#{anchor}"


def test_the_navigation_lists_the_page(page: Path, repository: Path) -> None:
    listed = re.findall(
        r"[\w/-]+\.md$", (repository / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert page.name == "README.md" or page.relative_to(repository / "docs").as_posix() in listed


def test_pages_that_the_code_mentions_exist(repository: Path) -> None:
    missing = {
        f"{path.relative_to(repository)}: {name}"
        for room in ("actograph", "api", "storage", "worker", "bench", "tests")
        for path in (repository / room).rglob("*.py")
        for name in re.findall(r"(?<![\w/.])docs/[\w/-]+\.md", path.read_text(encoding="utf-8"))
        if not (repository / name).is_file()
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


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_paths_in_the_files_at_the_top_exist(name: str, repository: Path) -> None:
    assert missing_paths((repository / name).read_text(encoding="utf-8"), repository) == []


def test_paths_in_the_pages_exist(page: Path, repository: Path) -> None:
    assert missing_paths(page.read_text(encoding="utf-8"), repository) == []


def test_a_path_that_is_gone_is_found(repository: Path) -> None:
    text = "`api/routes/chat.py`, `api/routes/chats.py`, `chat_waiting.py` and `chat_awaiting.py`"
    assert missing_paths(text, repository) == ["api/routes/chats.py", "chat_awaiting.py"]
