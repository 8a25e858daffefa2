"""Links between pages have targets, and the site's navigation lists every page."""

import re
from pathlib import Path


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


def test_paths_in_the_architecture_exist(repository: Path) -> None:
    text = (repository / "docs" / "architecture.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:actograph|api|storage|worker|bench|tests|training|docs)/[\w/.-]*)`", text)
    assert paths
    assert [path for path in paths if not (repository / path).exists()] == []
    questions = text.partition("## Where is ...?")[2].partition("\n## ")[0]
    names = re.findall(r"`(\w+\.py)`", questions)
    assert [name for name in names if not list(repository.glob(f"[asw]*/**/{name}"))] == []
