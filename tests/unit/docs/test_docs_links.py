"""Links between the pages lead somewhere, and the README knows them all."""

import re
from pathlib import Path


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_links(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found.read_text(encoding="utf-8")), f"{target}#{anchor}"


def test_the_readme_leads_to_the_page(page: Path, repository: Path) -> None:
    readme = (repository / "README.md").read_text(encoding="utf-8")
    assert page.name == "README.md" or f"(docs/{page.name})" in readme
