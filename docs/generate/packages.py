"""The table of packages in docs/architecture.md, from the docstrings of the packages."""

import ast
from pathlib import Path

from docs.generate.markdown import cell, table

REPO = Path(__file__).resolve().parents[2]
PAGE = REPO / "docs" / "architecture.md"
ROOMS = ("actograph", "api", "worker", "worker/engine", "storage")
START, END = "<!-- packages -->\n", "<!-- end -->"


def summary(package: Path) -> str:
    """First line of a package's docstring."""
    source = (package / "__init__.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def packages_table() -> str:
    """All packages of the rooms."""
    rows = [
        (f"`{package.relative_to(REPO).as_posix()}`", cell(summary(package)))
        for room in ROOMS
        for package in sorted((REPO / room).iterdir())
        if (package / "__init__.py").is_file()
    ]
    return table(("package", "holds"), rows)


def architecture() -> str:
    """The page of the architecture with an up-to-date table."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    return f"{before}{START}\n{packages_table()}{END}{rest.partition(END)[2]}"
