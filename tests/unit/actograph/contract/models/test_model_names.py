"""How a served model is named."""

from pathlib import Path

from actograph.contract.models import model_names


def test_a_hub_id_is_served_under_itself() -> None:
    model = model_names.parse("Qwen/Qwen3-0.6B")
    assert (model.name, model.source, model.aliases) == (
        "Qwen/Qwen3-0.6B",
        "Qwen/Qwen3-0.6B",
        frozenset({"Qwen/Qwen3-0.6B"}),
    )


def test_a_folder_is_also_served_under_its_last_part(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    model = model_names.parse(f"{folder}/")
    assert model.name == f"{folder}/"
    assert model.aliases == {f"{folder}/", "tiny"}


def test_a_name_may_be_given(tmp_path: Path) -> None:
    model = model_names.parse(f"demo={tmp_path}")
    assert model.name == "demo"
    assert model.source == str(tmp_path)
    assert "demo" in model.aliases


def test_a_folder_is_shown_by_its_last_part(tmp_path: Path) -> None:
    folder = tmp_path / "Qwen3-0.6B"
    folder.mkdir()
    assert model_names.short(str(folder)) == "Qwen3-0.6B"
    assert model_names.short(str(folder)) in model_names.parse(str(folder)).aliases
    for name in ("demo", "Qwen/Qwen3-0.6B", str(tmp_path / "gone")):
        assert model_names.short(name) == name
