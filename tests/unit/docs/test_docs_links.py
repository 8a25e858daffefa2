"""Links between pages have targets, and the site's navigation lists every page."""

import re
from pathlib import Path


def anchors(text: str) -> set[str]:
    """Ids of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_links(pages: list[Path]) -> None:
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
            linked = (page.parent / target).resolve() if target else page
            place = f"{page}: {target}#{anchor}"
            assert linked.exists(), place
            assert not anchor or anchor in anchors(linked.read_text(encoding="utf-8")), place


def test_the_navigation_lists_every_page(pages: list[Path], repository: Path) -> None:
    listed = re.findall(
        r"[\w/-]+\.md$", (repository / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE
    )
    docs = {page.relative_to(repository / "docs").as_posix() for page in pages if page.name != "README.md"}
    assert docs <= set(listed)


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


def test_paths_in_the_pages_exist(pages: list[Path], repository: Path) -> None:
    for page in [*pages, repository / "CONTRIBUTING.md", repository / "CHANGELOG.md"]:
        assert missing_paths(page.read_text(encoding="utf-8"), repository) == [], page


def test_a_path_that_is_gone_is_found(repository: Path) -> None:
    text = "`api/routes/chat.py`, `api/routes/chats.py`, `chat_waiting.py` and `chat_awaiting.py`"
    assert missing_paths(text, repository) == ["api/routes/chats.py", "chat_awaiting.py"]
