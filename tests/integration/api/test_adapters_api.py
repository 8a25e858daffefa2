"""Models with an adapter: their names in requests, in answers and in the queue."""

from typing import Any

import pytest

from actograph.settings import Settings
from tests.integration.api.conftest import MODEL, Problem, Service, Start, capture_spec

pytestmark = pytest.mark.integration


def test_jobs_name_an_adapter_by_any_of_its_names(
    start: Start, settings: Settings, problem: Problem, subtests: pytest.Subtests
) -> None:
    adapters = ("sad=example/demo-model+org/sad", "example/demo-model+org/glad")
    service: Service = start(settings.model_copy(update={"allowed_models": adapters}))
    service.load_model("sad")
    names: dict[Any, str] = {
        "sad": "sad",
        "example/demo-model+org/sad": "sad",
        f"{MODEL}+org/sad": "sad",
        f"{MODEL}+sad": "sad",
        f"{MODEL}+org/glad": "example/demo-model+org/glad",
        (MODEL, "sad"): "sad",
        ("example/demo-model", "org/glad"): "example/demo-model+org/glad",
        MODEL: MODEL,
        "example/demo-model": MODEL,
    }
    for sent, expected in names.items():
        with subtests.test(str(sent)):
            model = {"base": sent[0], "adapter": sent[1]} if isinstance(sent, tuple) else sent
            job = service.submit(model=model)
            assert service.client.get(f"/v1/jobs/{job}").json()["model"] == expected
            load = service.client.post("/v1/models/load", json={"model_id": model})
            assert load.json()["model"] == expected
    for wrong in (
        {"base": MODEL, "adapter": "org/other"},
        f"{MODEL}+sad+sad",
        {"base": "x", "adapter": "sad"},
    ):
        with subtests.test(str(wrong)):
            problem(service.client.post("/v1/jobs", json=capture_spec(model=wrong)), 422, "model_not_found")
    listed = {one["id"]: one for one in service.client.get("/v1/models").json()["data"]}
    assert listed["sad"]["adapter"] == "org/sad"
    assert {one["base"] for one in listed.values()} == {"example/demo-model"}
    assert listed["sad"]["status"] == "loaded" and listed[MODEL]["status"] == "available"
