"""All generated pages by file name."""

import json
from pathlib import Path

from actograph.experiment import spec as experiment
from docs.generate import cli, errors, http, packages, python_api, settings

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
        "experiment.schema.json": json.dumps(experiment.schema(), indent=1),
        "../architecture.md": packages.architecture(),
    }
    return {name: text.rstrip() + "\n" for name, text in texts.items()}
