"""Targets, the file of boxes, and records of deployments."""

from pathlib import Path

import pytest

from actograph.contract.errors import InvalidRequest, NotFound
from actograph.deploy.boxes import Boxes, Deployment, box_of


@pytest.mark.parametrize("target", ["gpu-box", "me@gpu.example.org", "me@10.0.0.4:2222"])
def test_targets(target: str) -> None:
    assert box_of({"target": target}).target == target


@pytest.mark.parametrize(
    "target", ["-oProxyCommand=sh", "me@", "a b", "me@host:port", "me@-host", "", "h;ls"]
)
def test_a_target_that_ssh_could_take_for_a_flag_is_refused(target: str) -> None:
    with pytest.raises(InvalidRequest, match=r"box: target: .* is not user@host\[:port\]"):
        box_of({"target": target})


@pytest.mark.parametrize("folder", ["/", ".", "..", "a/../..", "~", "$HOME", "a;b", ""])
def test_a_folder_that_destroy_must_not_remove_is_refused(folder: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a folder name"):
        box_of({"target": "box", "folder": folder})


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="box: modle"):
        box_of({"target": "box", "modle": "demo"})


def test_boxes_of_the_file(tmp_path: Path) -> None:
    boxes = Boxes(tmp_path)
    assert boxes.box("me@10.0.0.4:22") == ("10.0.0.4_22", {"target": "me@10.0.0.4:22"})
    boxes.file.write_text("boxes:\n  night: {target: me@10.0.0.4, model: demo}\n")
    assert boxes.box("night") == ("night", {"target": "me@10.0.0.4", "model": "demo"})
    boxes.file.write_text("boxes:\n  night: {target: me@10.0.0.4, env_file: night.env}\n")
    assert boxes.box("night")[1]["env_file"] == str(tmp_path / "night.env")
    boxes.file.write_text("boxes: [night]\n")
    with pytest.raises(InvalidRequest, match="expected `boxes:`"):
        boxes.box("night")
    boxes.file.write_text("boxes: {\n")
    with pytest.raises(InvalidRequest, match=r"boxes\.yaml"):
        boxes.box("night")


def test_records_are_found_by_name_and_by_target(tmp_path: Path) -> None:
    boxes = Boxes(tmp_path)
    with pytest.raises(NotFound, match="deployed: none"):
        boxes.deployment(None)
    for name in ("day", "night"):
        box = box_of({"target": f"me@{name}", "model": "demo"})
        boxes.save(Deployment(name=name, box=box, root="/home/me/actograph", python="python3"))
    assert boxes.deployment("me@night").name == "night"
    assert boxes.box("day") == ("day", {"target": "me@day", "model": "demo"})
    with pytest.raises(NotFound, match="name a box; deployed: day, night"):
        boxes.deployment(None)
    boxes.forget("day")
    assert boxes.deployment(None).name == "night"
