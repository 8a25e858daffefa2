"""How a served model is named."""

from pathlib import Path

from actograph.contract.models import parse_served


def test_a_hub_id_is_served_under_itself() -> None:
    model = parse_served("Qwen/Qwen3-0.6B")
    assert (model.name, model.source, model.aliases) == (
        "Qwen/Qwen3-0.6B",
        "Qwen/Qwen3-0.6B",
        frozenset({"Qwen/Qwen3-0.6B"}),
    )


def test_a_folder_is_also_served_under_its_last_part(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    model = parse_served(f"{folder}/")
    assert model.name == f"{folder}/"
    assert model.aliases == {f"{folder}/", "tiny"}


def test_a_name_may_be_given(tmp_path: Path) -> None:
    model = parse_served(f"demo={tmp_path}")
    assert model.name == "demo"
    assert model.source == str(tmp_path)
    assert "demo" in model.aliases
