"""POST /v1/jobs: capture specs that select, and the field that a refusal names."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.api.conftest import Problem, Service

pytestmark = pytest.mark.integration


def job(**capture: Any) -> dict[str, Any]:
    return {"kind": "capture", "model": "demo", "inputs": [{"prompt": "Hello"}], "capture": capture}


@pytest.mark.parametrize(
    "capture",
    [
        {"features": {"first": 8}},
        {"features": {"indices": [7, 0]}},
        {"positions": {"stride": 4}},
        {"positions": [0, -1, 700]},
        {"positions": "think"},
        {"positions": ["prompt", "answer", "tool_result"]},
        {"reduce": "mean"},
        {"stats": {"threshold": 6.0, "tensors": False}},
    ],
)
def test_a_spec_that_selects_is_accepted(service: "Service", capture: dict[str, Any]) -> None:
    service.load_model()
    answer = service.client.post("/v1/jobs", json=job(**capture))
    assert answer.status_code == 202
    stored = answer.json()["spec"]["capture"]
    assert {name: stored[name] for name in capture} == capture


def test_a_wrong_choice_is_refused_by_its_field(
    service: "Service", problem: "Problem", subtests: pytest.Subtests
) -> None:
    for capture, pointer in [
        ({"features": {"first": 0}}, "/capture/features/first"),
        ({"features": {"indices": []}}, "/capture/features/indices"),
        ({"features": {"indices": [1, 1]}}, "/capture/features/indices"),
        ({"features": {"indices": [-1]}}, "/capture/features/indices/0"),
        ({"features": {"last": 3}}, "/capture/features/last"),
        ({"features": {"first": 9}}, "/capture/features"),
        ({"features": {"indices": [8]}}, "/capture/features"),
        ({"reduce": "median"}, "/capture/reduce"),
        ({"stats": {"threshold": -1}}, "/capture/stats/threshold"),
        ({"stats": {"tensors": 3}}, "/capture/stats/tensors"),
        ({"stats": {"kurtosis": True}}, "/capture/stats/kurtosis"),
        ({"stats": "all"}, "/capture/stats"),
        ({"reduce": "mean", "stats": {"tensors": False}}, "/capture"),
        ({"positions": "somewhere"}, "/capture/positions"),
        ({"positions": []}, "/capture/positions"),
        ({"positions": ["prompt", 3]}, "/capture/positions/0"),
        ({"positions": [1, 1]}, "/capture/positions"),
        ({"positions": [True]}, "/capture/positions/0"),
        ({"positions": {"stride": 0}}, "/capture/positions/stride"),
        ({"positions": {"every": 4}}, "/capture/positions/every"),
    ]:
        with subtests.test(capture=capture, pointer=pointer):
            service.load_model()
            problem(service.client.post("/v1/jobs", json=job(**capture)), 422, "invalid_request", pointer)
            assert service.messages() == []


def test_true_means_the_statistics_as_they_come(service: "Service") -> None:
    service.load_model()
    stored = [
        service.client.post("/v1/jobs", json=job(stats=value)).json()["spec"]["capture"]["stats"]
        for value in (True, False)
    ]
    assert stored == [{"threshold": None, "tensors": True}, None]
