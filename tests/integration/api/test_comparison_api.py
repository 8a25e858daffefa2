"""/v1/jobs/{id}/comparison on real session folders: verdicts, and texts with the shifts of rows."""

from typing import Any

import numpy as np
import pytest

from actograph.client import Client
from actograph.contract.resources import Score
from storage.sessions.writer import TensorRows
from tests.integration.api.conftest import Problem, Service

PROBLEMS = 4
HOOKS = ("resid_post.1", "mlp_in.2")
WIDTH = 8
CONDITIONS = [{"name": "plain"}, {"name": "steered"}, {"name": "other"}]
#: generated tokens by condition; the first two part at the third one
GENERATED = {"plain": [7, 8, 9, 10], "steered": [7, 8, 1, 2], "other": [7, 8, 9, 10]}
TEXTS = {"plain": "one two", "steered": "one more", "other": "one two"}

Rows = dict[tuple[str, int], np.ndarray[Any, Any]]


@pytest.fixture
def job(service: Service) -> tuple[str, Rows]:
    """A finished job of three conditions; rows of the first hook by (condition, problem)."""
    service.load_model()
    inputs = [{"prompt": f"prompt {i}"} for i in range(PROBLEMS)]
    job_id = service.submit(inputs=inputs, conditions=CONDITIONS, capture={"hooks": list(HOOKS)})
    generator = np.random.default_rng(0)
    stored: Rows = {}
    for lease in service.claim(job_id, len(CONDITIONS) * PROBLEMS):
        values = stored[lease.condition, lease.sample_index] = generator.normal(size=(6, WIDTH)).astype("<f4")
        tensors = {
            HOOKS[0]: TensorRows(HOOKS[0], "F32", (6, WIDTH), 0, values),
            # without the row that chose the third token
            HOOKS[1]: TensorRows(HOOKS[1], "F32", (1, WIDTH), 5, values[5:]),
        }
        score = Score(value=float(lease.condition == "steered" or lease.sample_index == 0))
        service.finish(
            lease,
            tensors=tensors,
            scores={"exact_match,strict-match": score},
            completion=TEXTS[lease.condition],
            token_ids=[1, 2, 3, *GENERATED[lease.condition]],
        )
    return job_id, stored


def test_verdicts_are_compared_over_http(service: Service, job: tuple[str, Rows]) -> None:
    address = f"/v1/jobs/{job[0]}/comparison"
    answer = service.client.get(address, params={"baseline": "plain", "resamples": 500})
    assert answer.status_code == 200, answer.text
    metric = answer.json()["conditions"]["steered"]["metrics"]["exact_match,strict-match"]
    assert (metric["pairs"], metric["only_baseline"], metric["only_condition"]) == (4, 0, 3)
    assert metric["difference"] == 0.75
    assert metric["mcnemar_p"] == 0.25


def test_texts_part_where_they_do_and_shifts_are_those_of_the_rows(
    service: Service, url: str, job: tuple[str, Rows]
) -> None:
    job_id, stored = job
    with Client(url, "") as client:
        found = client.jobs.get(job_id).compare_texts(limit=2, offset=1, hooks=["resid_post", "mlp_in.2"])
        assert [one.sample_index for one in found.data] == [1, 2]
        assert found.has_more
        for one in found.data:
            steered, other = one.conditions["steered"], one.conditions["other"]
            assert (one.baseline, steered.text, other.text) == tuple(TEXTS.values())
            assert (steered.character, steered.token) == (4, 2)
            assert (other.character, other.token) == (None, None)
            # the row of the token before: prompt of 3 tokens, 2 generated ones in common
            for name, row in [("steered", 4), ("other", 5)]:
                a, b = (stored[side, one.sample_index][row].astype(float) for side in ("plain", name))
                shift = np.linalg.norm(b - a) / np.linalg.norm(a)
                assert one.conditions[name].shifts[HOOKS[0]] == pytest.approx(shift)
            assert HOOKS[1] not in steered.shifts
            assert HOOKS[1] in other.shifts
        assert not client.jobs.get(job_id).compare_texts(limit=3, offset=1).has_more
        shown = str(found)
    assert "(the same)" in shown
    assert "mean shift" in shown


def test_what_cannot_be_compared_is_refused(
    service: Service, job: tuple[str, Rows], problem: Problem, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        (job[0], {"baseline": "loud"}, "no condition loud; the job has plain, steered, other"),
        (job[0], {"hooks": ["resid_pst"]}, "Did you mean 'resid_post'?"),
        (job[0], {"limit": 101}, "100"),
        (service.submit(), {}, "a comparison needs two"),
    ]
    for job_id, params, says in cases:
        with subtests.test(says=says):
            answer = service.client.get(f"/v1/jobs/{job_id}/comparison/texts", params=params)
            problem(answer, 422, says=says)
    problem(service.client.get("/v1/jobs/job_" + "0" * 32 + "/comparison"), 404)
    problem(service.client.get(f"/v1/jobs/{job[0]}/comparison", params={"level": 1.5}), 422)
