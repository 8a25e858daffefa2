"""Write the pages of the reference, and the table of packages in docs/architecture.md."""

from docs.generate import packages
from docs.generate.pages import REFERENCE, pages


def main() -> None:
    """Write every page."""
    for name, text in pages().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")
    packages.PAGE.write_text(packages.architecture(), encoding="utf-8")


if __name__ == "__main__":
    main()
