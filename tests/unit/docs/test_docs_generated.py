"""The generated pages of docs/reference are up to date, and each error code has a cure."""

from actograph.settings import Settings
from docs.generate import errors
from docs.generate.pages import REFERENCE, pages


def test_generated_pages_are_up_to_date() -> None:
    stale = [name for name, text in pages().items() if (REFERENCE / name).read_text("utf-8") != text]
    assert stale == [], "run: python -m docs.generate"


def test_every_error_has_a_cure_and_every_cure_an_error() -> None:
    assert {kind.code for kind in errors.codes()} == set(errors.CURES)


def test_every_setting_has_a_description() -> None:
    assert all(field.description for field in Settings.model_fields.values())


def test_every_field_of_a_job_spec_has_a_meaning() -> None:
    rows = (REFERENCE / "job-spec.md").read_text("utf-8").splitlines()
    assert [row for row in rows if row.startswith("| `") and row.endswith("|  |")] == []
