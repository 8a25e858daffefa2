"""/v1/jobs/{id}/comparison on real session folders: pooled differences and the vectors made of them."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actograph.contract.resources import Score
from storage.sessions.writer import TensorRows
from tests.integration.api.conftest import Problem, Service

PROBLEMS = 4
HOOKS = ("resid_post.1", "mlp_in.2")
WIDTH = 8
SHIFT = np.linspace(-1, 2, WIDTH)
CONDITIONS = [{"name": "plain"}, {"name": "steered"}, {"name": "other"}]

Sessions = dict[tuple[str, int], NDArray[np.float32]]


def url(job_id: str, tail: str = "") -> str:
    return f"/v1/jobs/{job_id}/comparison{tail}"


@pytest.fixture
def job(service: Service) -> tuple[str, Sessions]:
    """A finished job of three conditions; rows of the first hook by (condition, problem)."""
    service.load_model()
    inputs = [{"prompt": f"prompt {i}"} for i in range(PROBLEMS)]
    job_id = service.submit(inputs=inputs, conditions=CONDITIONS, capture={"hooks": list(HOOKS)})
    generator = np.random.default_rng(0)
    rows: Sessions = {}
    for lease in service.claim(job_id, len(CONDITIONS) * PROBLEMS):
        values = generator.normal(size=(6, WIDTH)).astype("<f4")
        if lease.condition == "steered":
            values += SHIFT.astype("<f4")
        rows[lease.condition, lease.sample_index] = values
        halves = (values[3:].view("<u4") >> 16).astype("<u2")
        tensors = {
            HOOKS[0]: TensorRows(HOOKS[0], "F32", (6, WIDTH), 0, values),
            HOOKS[1]: TensorRows(HOOKS[1], "BF16", (3, WIDTH), 3, halves),
        }
        value = float(lease.condition == "steered" or lease.sample_index == 0)
        service.finish(lease, tensors=tensors, scores={"exact_match,strict-match": Score(value=value)})
    return job_id, rows


def compare(service: Service, job_id: str, **body: Any) -> dict[str, Any]:
    answer = service.client.post(url(job_id, "/activations"), json={"condition": "steered"} | body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_verdicts_are_compared_over_http(service: Service, job: tuple[str, Sessions]) -> None:
    answer = service.client.get(url(job[0]), params={"baseline": "plain", "resamples": 500})
    assert answer.status_code == 200, answer.text
    metric = answer.json()["conditions"]["steered"]["metrics"]["exact_match,strict-match"]
    assert (metric["pairs"], metric["only_baseline"], metric["only_condition"]) == (4, 0, 3)
    assert metric["difference"] == 0.75
    assert metric["mcnemar_p"] == 0.25


def test_the_mean_difference_is_that_of_the_rows(
    service: Service, job: tuple[str, Sessions], subtests: pytest.Subtests
) -> None:
    for positions, low, high in [
        ("all", 0, 6), ("generated", 3, 6), ("last", 5, 6), ("last_prompt", 2, 3),
    ]:  # fmt: skip
        with subtests.test(positions):
            check_difference(service, job, positions, low, high)


def check_difference(
    service: Service, job: tuple[str, Sessions], positions: str, low: int, high: int
) -> None:
    job_id, stored = job
    found = compare(service, job_id, hooks=["blocks.1.hook_resid_post"], positions=positions, save_as="mood")
    assert (found["pairs"], found["skipped"]) == (PROBLEMS, 0)
    hook = found["hooks"][HOOKS[0]]
    means = {side: np.array([stored[side, i][low:high].mean(axis=0) for i in range(PROBLEMS)]) for side in
             ("plain", "steered")}  # fmt: skip
    differences = means["steered"] - means["plain"]
    direction = differences.mean(axis=0)
    length = np.linalg.norm(direction)
    assert hook["difference_norm"] == pytest.approx(length, rel=1e-5)
    assert hook["baseline_norm"] == pytest.approx(np.linalg.norm(means["plain"].mean(axis=0)), rel=1e-5)
    assert hook["mean_pair_norm"] == pytest.approx(np.linalg.norm(differences, axis=1).mean(), rel=1e-5)
    cosines = differences @ direction / np.linalg.norm(differences, axis=1) / length
    assert hook["consistency"] == pytest.approx(cosines.mean(), rel=1e-5)
    vector = service.client.get(f"/v1/vectors/{hook['vector_id']}").json()
    np.testing.assert_allclose(vector["vector"], direction, rtol=1e-5, atol=1e-6)
    assert (vector["name"], vector["hook"], vector["model"]) == ("mood", HOOKS[0], "demo")
    assert vector["metadata"]["condition"] == "steered"
    change = {"hook": HOOKS[0], "op": "add", "vector_id": hook["vector_id"], "coefficient": 4.0}
    assert service.submit(interventions=[change]), "it steers the next job"


def test_what_cannot_be_compared_is_refused_and_changes_nothing(
    service: Service, job: tuple[str, Sessions], problem: Problem
) -> None:
    def refused(body: dict[str, Any], says: str, job_id: str = job[0]) -> None:
        answer = service.client.post(url(job_id, "/activations"), json=body)
        problem(answer, 422, says=says)

    refused({"condition": "plain"}, "the baseline itself")
    refused({"condition": "loud"}, "no condition loud; the job has plain, steered, other")
    refused({"condition": "steered", "hooks": ["mlp_out.0"]}, "the job has no hook mlp_out.0")
    refused({"condition": "steered", "positions": "thoughts"}, "positions")
    refused({"condition": "steered"}, "a comparison needs two", service.submit())
    problem(service.client.get(url("job_" + "0" * 32)), 404)
    problem(service.client.get(url(job[0]), params={"level": 1.5}), 422)
    assert service.client.get("/v1/vectors").json()["data"] == []
