"""All pages of the reference by file name."""

from pathlib import Path

from docs.generate import cli, errors, http, python_api, settings

REFERENCE = Path(__file__).resolve().parents[1] / "reference"


def pages() -> dict[str, str]:
    """Build the text of each generated page."""
    document = http.document()
    texts = {
        "http.md": http.routes_page(document),
        "job-spec.md": http.spec_page(document),
        "objects.md": http.objects_page(document),
        "cli.md": cli.page(),
        "settings.md": settings.page(),
        "python.md": python_api.page(),
        "errors.md": errors.page(),
    }
    return {name: text.rstrip() + "\n" for name, text in texts.items()}
