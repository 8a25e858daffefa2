"""The generated pages are complete, and as the code would write them today."""

from pathlib import Path

import pytest

from actograph.settings import Settings
from docs.generate import errors
from docs.generate.pages import REFERENCE
from docs.generate.pages import pages as generated


def test_the_committed_pages_are_those_of_the_code(pages: dict[Path, str], subtests: pytest.Subtests) -> None:
    for name, text in generated().items():
        with subtests.test(name):
            # not `==` in the assertion: pytest would compare thousands of lines
            is_fresh = pages.get(REFERENCE / name) == text
            assert is_fresh, "run `python -m docs.generate` and commit what it writes"


def test_every_error_has_a_cure_and_every_cure_an_error() -> None:
    assert {kind.code for kind in errors.codes()} == set(errors.CURES)


def test_every_setting_is_listed_with_a_meaning(pages: dict[Path, str]) -> None:
    text = pages[REFERENCE / "settings.md"]
    for name, field in Settings.model_fields.items():
        assert field.description
        assert f"| `ACTOGRAPH_{name.upper()}` |" in text


def test_every_field_of_a_job_spec_has_a_meaning(pages: dict[Path, str]) -> None:
    rows = pages[REFERENCE / "job-spec.md"].splitlines()
    assert [row for row in rows if row.startswith("| `") and row.endswith("|  |")] == []
