"""Changes of a JSON object."""

import pytest

from actograph.contract.base import merged
from actograph.contract.errors import InvalidRequest


def test_objects_are_merged_and_dots_lead_into_them() -> None:
    body = {"sampling": {"seed": 3, "top_p": 0.5}, "metadata": {"a.b": "c", "d": {"e": 1}}, "capture": None}
    changes = {
        "sampling.top_p": 0.0,
        "capture.points": ["embed"],
        "metadata": {"a.b": "x", "d": {"f": 2}},
        "tags": ["a"],
    }
    assert merged(body, changes) == {
        "sampling": {"seed": 3, "top_p": 0.0},
        "metadata": {"a.b": "x", "d": {"e": 1, "f": 2}},
        "capture": {"points": ["embed"]},
        "tags": ["a"],
    }
    assert body["sampling"] == {"seed": 3, "top_p": 0.5}, "the body is left as it is"
    with pytest.raises(InvalidRequest, match=r"capture\.layers cannot be set, as capture is not an object"):
        merged({"capture": ["x"]}, {"capture.layers": "all"})
