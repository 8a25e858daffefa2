"""Vectors and SAEs stay while an active job names them, wherever it does."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.api import test_patch_jobs_api as patches
from tests.integration.api.conftest import Problem, Service
from tests.integration.api.test_batches_api import create, line, show
from tests.integration.api.test_replays_api import identity
from tests.integration.api.test_saes_api import store as store_sae


def test_what_an_active_job_names_is_not_deleted(
    service: Service, problem: Problem, subtests: pytest.Subtests
) -> None:
    service.load_model(identity=identity())
    sides = patches.recorded(service)
    job: dict[str, Any] = {"inputs": [{"prompt": "a"}]}

    def in_job(**fields: Any) -> str:
        return service.submit(**job | fields)

    def in_batch(**body: Any) -> str:
        batch_id = create(service, line("plain"), line("named", **body))
        job_id = show(service, batch_id)["job_id"]
        assert job_id, show(service, batch_id)
        return str(job_id)

    def in_metric(reference: str) -> str:
        metric = {"readout": {"vector": reference}}
        return str(patches.patch(service, **sides, answer=None, metric=metric).json()["id"])

    add = {"hook": "resid_post.1", "op": "add"}
    places: dict[str, tuple[str, Callable[[str], str]]] = {
        "an intervention": ("vectors", lambda one: in_job(interventions=[add | {"vector_id": one}])),
        "a condition": (
            "vectors",
            lambda one: in_job(conditions=[{"name": "c", "interventions": [add | {"vector_id": one}]}]),
        ),
        "a readout": ("vectors", lambda one: in_job(capture={"readouts": [{"vector": one}]})),
        "a metric": ("vectors", in_metric),
        "a line's intervention": ("vectors", lambda one: in_batch(interventions=[add | {"vector_id": one}])),
        "a line's readout": ("vectors", lambda one: in_batch(capture={"readouts": [{"vector": one}]})),
        "latents": ("saes", lambda one: in_job(capture={"saes": [{"sae": one}]})),
        "a latent": ("saes", lambda one: in_job(interventions=[add | {"sae": one, "latent": 3}])),
        "a line's latents": ("saes", lambda one: in_batch(capture={"saes": [{"sae": one}]})),
        "a line's latent": ("saes", lambda one: in_batch(interventions=[add | {"sae": one, "latent": 3}])),
    }
    for place, (kind, use) in places.items():
        with subtests.test(place=place):
            if kind == "saes":
                name = store_sae(service)["id"]
            else:
                new = {"name": "v", "hook": "resid_post.1", "vector": [1.0] * 8}
                name = service.client.post("/v1/vectors", json=new).json()["id"]
            job_id = use(name)
            problem(service.client.delete(f"/v1/{kind}/{name}"), 409, "conflict", says=job_id)
            service.client.post(f"/v1/jobs/{job_id}/cancel")
            assert service.client.delete(f"/v1/{kind}/{name}").json()["deleted"]
