"""/v1/jobs/{id}/matrix, by the client."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.client import ApiError, Client
from actograph.contract.analyses import SessionQuery
from actograph.contract.resources import Score
from storage.analyses import queries
from storage.sessions.writer import TensorRows
from tests.integration.api.conftest import Problem, Service
from tests.support.command_line import Run

HOOK = "resid_post.1"
KEY = "exact_match,strict-match"


def test_rows_of_a_job_with_their_labels_and_filters(service: Service, url: str) -> None:
    service.load_model()
    inputs = [{"prompt": f"prompt {i}"} for i in range(3)]
    job_id = service.submit(inputs=inputs, conditions=[{"name": "a"}, {"name": "b"}])
    stored = {}
    for lease in service.claim(job_id, 6):
        rows = np.random.default_rng(lease.sample_index).normal(size=(6, 8)).astype("<f4")
        stored[lease.sample_index, lease.condition] = rows
        scores = {KEY: Score(value=lease.sample_index / 10)} if lease.sample_index else {}
        tensors = {HOOK: TensorRows(HOOK, "F32", (6, 8), 0, rows)}
        service.finish(lease, tensors=tensors, scores=scores, correct=lease.sample_index < 2)

    with Client(url, "") as client:
        job = client.jobs.get(job_id)

        def where(matrix: Any) -> set[tuple[int, str]]:
            return set(zip(matrix.sample_index.tolist(), matrix.condition.tolist(), strict=True))

        matrix = job.matrix("blocks.1.hook_resid_post", positions=-1)
        assert where(matrix) == set(stored)
        for row, index, condition in zip(matrix.features, matrix.sample_index, matrix.condition, strict=True):
            assert np.array_equal(row, stored[index, condition][2])
        assert matrix.labels.tolist() == [float(index < 2) for index in matrix.sample_index]
        assert (matrix.hook, matrix.skipped) == ("blocks.1.hook_resid_post", [])
        assert len(job.matrix("model.layers[1].resid_post.output")) == 6, "a module path of the model"
        assert where(job.matrix(HOOK, condition="b", correct=True)) == {(0, "b"), (1, "b")}
        assert len(job.matrix(HOOK, limit=2, positions={"start": 4}, epoch=0)) == 4
        assert set(job.matrix(HOOK, positions="answer[-1]").tokens) == {5}
        assert client.matrix(HOOK, positions="3,4", job_id=job_id, limit=1).tokens.tolist() == [3, 4]
        scored = job.matrix(HOOK, positions="answer", reduce="mean", label=KEY, condition="a")
        values = dict(zip(scored.sample_index.tolist(), scored.labels.tolist(), strict=True))
        assert (values[1], values[2], np.isnan(values[0])) == (0.1, 0.2, True)
        for options, says in [
            ({"label": "f1"}, f"Known: column:prompt, condition, correct, {KEY}"),
            ({"positions": "middle"}, "positions: 'middle' selects no tokens. Known: all, answer"),
            ({"positions": "all", "max_bytes": 64}, "more than max_bytes=64"),
            ({"condition": "c"}, "no session matches the filters"),
        ]:
            with pytest.raises(ApiError, match=says):
                job.matrix(HOOK, **options)


def test_rows_are_in_the_order_of_problem_condition_and_epoch_everywhere(
    service: Service, url: str, run: Run, tmp_path: Path
) -> None:
    """Samples end in any order, and the names of the conditions say nothing."""
    service.load_model()
    inputs = [{"prompt": f"prompt {i}"} for i in range(3)]
    conditions = [{"name": "plain"}, {"name": "career"}]
    job_id = service.submit(inputs=inputs, conditions=conditions, epochs=2, tags=["night"])
    leases = service.claim(job_id, 12)
    for place in np.random.default_rng(0).permutation(12):
        rows = np.full((6, 8), place, "<f4")
        service.finish(leases[place], tensors={HOOK: TensorRows(HOOK, "F32", (6, 8), 0, rows)})
    due = [(index, name, epoch) for index in range(3) for name in ("plain", "career") for epoch in (0, 1)]
    with Client(url, "") as client:
        job = client.jobs.get(job_id)
        for matrix in (job.matrix(HOOK), client.matrix(HOOK, tag="night")):
            found = zip(matrix.sample_index, matrix.condition, matrix.epoch, strict=True)
            assert [(int(a), str(b), int(c)) for a, b, c in found] == due
            assert matrix.features[:, 0].tolist() == list(range(12))
        assert job.matrix(HOOK, limit=3).features[:, 0].tolist() == [0, 1, 2]
        frame = job.frame()
        assert list(zip(frame.sample_index, frame.condition, frame.epoch, strict=True)) == due
        arrays = np.load(job.write_arrays(tmp_path / "rows.npz"))
        assert arrays[HOOK][:, 0, 0].tolist() == list(range(12))
    code, _, err = run("jobs", "export", job_id, "--out", tmp_path / "out")
    assert code == 0, err
    lines = (tmp_path / "out" / "dataset.jsonl").read_text().splitlines()
    parsed = [json.loads(line) for line in lines]
    assert [(one["sample_index"], one["condition"], one["epoch"]) for one in parsed] == due
    with service.database.read() as session:
        ids = queries.session_ids(session, SessionQuery(jobs=[job_id]))
        assert ids == [one.id for one in queries.sources(session, SessionQuery(jobs=[job_id]), HOOK)]
        assert ids == [lease.session_id for lease in leases]


def test_requests_that_are_refused(service: Service, problem: Problem) -> None:
    service.load_model()
    path = f"/v1/jobs/{service.submit()}/matrix"
    for params in ({}, {"hook": HOOK, "reduce": "sum"}, {"hook": HOOK, "positions": "true"}):
        problem(service.client.get(path, params=params), 422)
    problem(service.client.get(path.replace("job_", "job_0"), params={"hook": HOOK}), 404)
