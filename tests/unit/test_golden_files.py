"""A change of the routes, the commands or the models of the contract shows in the golden files."""

from tests.golden.texts import FOLDER, texts


def test_users_see_what_the_golden_files_say() -> None:
    changed = [name for name, text in texts().items() if (FOLDER / name).read_text("utf-8") != text]
    assert changed == [], "look at the difference after: python -m tests.golden"
