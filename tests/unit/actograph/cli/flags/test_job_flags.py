from pathlib import Path

import pytest

from actograph.cli.flags import job_spec
from actograph.contract.errors import InvalidRequest
from actograph.job_requests import assembly, captures


def test_flags_win_and_leave_the_rest_alone() -> None:
    spec = {"kind": "capture", "sampling": {"seed": 3, "top_p": 0.5}, "tags": ["a"]}
    merged = assembly.merge(spec, {"sampling.top_p": 0.9, "capture.points": ["embed"], "model": None})
    assert merged == {
        "kind": "capture",
        "sampling": {"seed": 3, "top_p": 0.9},
        "tags": ["a"],
        "capture": {"points": ["embed"]},
    }
    assert spec["sampling"] == {"seed": 3, "top_p": 0.5}


def test_zero_and_false_are_values() -> None:
    assert assembly.merge({}, {"sampling.temperature": 0.0, "enable_thinking": False}) == {
        "sampling": {"temperature": 0.0},
        "enable_thinking": False,
    }


def test_an_object_that_the_file_has_as_null_is_made() -> None:
    assert assembly.merge({"capture": None}, {"capture.layers": "all"}) == {"capture": {"layers": "all"}}


def test_a_list_where_an_object_must_be_is_an_error() -> None:
    with pytest.raises(InvalidRequest, match="capture"):
        assembly.merge({"capture": []}, {"capture.layers": "all"})


@pytest.mark.parametrize(
    ("text", "value"), [("all", "all"), ("8:20:4", "8:20:4"), ("3", [3]), ("8,12,16", [8, 12, 16])]
)
def test_layers(text: str, value: list[int] | str) -> None:
    assert captures.parse_layers(text) == value


def test_layers_that_mean_nothing() -> None:
    with pytest.raises(InvalidRequest, match="8:20:4"):
        captures.parse_layers("first")


def test_names_with_commas_or_repeated() -> None:
    assert captures.names(["a, b", "c"]) == ["a", "b", "c"]
    assert captures.names([]) is None


def test_mistakes_are_named_by_field() -> None:
    spec = {"kind": "evaluation", "model": "m", "dataset": {"path": "p"}, "limt": 3, "sampling": {"top_p": 2}}
    with pytest.raises(InvalidRequest) as caught:
        assembly.check(spec)
    assert "limt: " in str(caught.value)
    assert "sampling.top_p: " in str(caught.value)


def test_a_spec_that_is_right_passes() -> None:
    assembly.check({"kind": "capture", "model": "m", "inputs": [{"prompt": "p"}]})


@pytest.mark.parametrize(("content", "reason"), [("{", "not JSON"), ("[1]", "is not a JSON object")])
def test_files_that_hold_no_spec(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "spec.json"
    path.write_text(content)
    with pytest.raises(InvalidRequest, match=reason):
        job_spec.read_spec(str(path))


def test_a_spec_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="No such file"):
        job_spec.read_spec(str(tmp_path / "none.json"))
