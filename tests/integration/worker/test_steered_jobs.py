"""Steered jobs through the drain: conditions side by side, records in the manifest, lost vectors."""

from typing import TYPE_CHECKING, Any

import pytest
import torch

from actograph.contract.base import ErrorRecord
from actograph.contract.interventions import NewVector, vector_sha256
from actograph.contract.resources import JobStatus, Sample
from storage.jobs import jobs
from storage.queue import view
from storage.sessions import vectors
from storage.sessions.writer import SessionReader

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

INPUTS = [{"prompt": "one and two"}, {"prompt": "Tom has 34 books and Mia has 57 books. How many?"}]
HOOK = "resid_post.0"


class Place:
    """Steered jobs on a bench."""

    def __init__(self, bench: "Bench") -> None:
        self.bench, self.settings, self.database = bench, bench.settings, bench.database

    def submit(self, **changes: Any) -> str:
        return self.bench.submit(**{"sampling": {"max_tokens": 6}} | changes)

    def run(self, job_id: str) -> list[Sample]:
        self.bench.drain(slots=3).look()
        return self.bench.samples(job_id)

    def ended(self, job_id: str) -> tuple[JobStatus, ErrorRecord | None]:
        with self.database.read() as session:
            job = view.job(session, jobs.get(session, job_id))
        return job.status, job.error

    def keep(self, numbers: list[float], **changes: Any) -> str:
        value = {"name": "v", "hook": HOOK, "vector": numbers} | changes
        with self.database.write() as session:
            return vectors.insert(session, NewVector.model_validate(value)).id

    def reader(self, sample: Sample) -> SessionReader:
        assert sample.session_id is not None, sample.error
        return SessionReader(self.bench.store, sample.session_id)

    def rows(self, sample: Sample, hook: str) -> torch.Tensor:
        reader = self.reader(sample)
        count = reader.manifest.tensors[hook].shape[0]
        stored = reader.rows(hook, 0, count)
        return torch.frombuffer(bytearray(stored.data), dtype=torch.float32).view(stored.shape)


@pytest.fixture
def place(bench: "Bench") -> Place:
    return Place(bench)


def test_steering_by_the_norm_of_the_rows(place: Place) -> None:
    """Each row moves by the share of its own norm along the vector, however long the vector is."""
    numbers = [((i * 37) % 11 - 5) / 1.7 for i in range(96)]
    edit = {"hook": HOOK, "op": "add", "scale_by": "row_norm", "coefficient": -0.5}
    names = {"short": [one / 1000 for one in numbers], "long": [one * 1000 for one in numbers]}
    conditions: list[dict[str, Any]] = [{"name": "plain"}]
    for name, vector in names.items():
        vector_id = place.keep(vector, name=name)
        conditions.append({"name": name, "interventions": [edit | {"vector_id": vector_id}]})
    capture = {"hooks": [HOOK], "mode": "prefill"}
    done = place.run(place.submit(inputs=INPUTS[1:], capture=capture, conditions=conditions, sampling={}))
    plain, *steered = (place.rows(sample, HOOK) for sample in done)
    unit = torch.tensor(numbers) / torch.tensor(numbers).norm()
    for sample, rows in zip(done[1:], steered, strict=True):
        due = plain - 0.5 * plain.norm(dim=-1, keepdim=True) * unit
        assert torch.allclose(rows, due, atol=1e-3)
        (record,) = place.reader(sample).manifest.interventions
        assert (record.op, record.scale_by, record.coefficient) == ("add", "row_norm", -0.5)


def test_a_steered_run_and_its_twin_are_two_conditions_of_one_job(place: Place) -> None:
    numbers = [((i * 37) % 11 - 5) / 1.7 for i in range(96)]
    vector_id = place.keep(numbers)
    everywhere = {"hook": "mlp_out.1", "op": "scale", "coefficient": 0.5, "positions": {"start": 1}}
    steered = {
        "hook": "layers_output[0]", "op": "add", "vector_id": vector_id, "coefficient": 4,
        "positions": "generated",
    }  # fmt: skip
    capture = {"hooks": [HOOK, "resid_pre.1", "resid_mid.0", "mlp_out.1"]}
    job_id = place.submit(
        inputs=INPUTS,
        capture=capture,
        interventions=[everywhere],
        conditions=[{"name": "plain"}, {"name": "steered", "interventions": [steered]}],
    )
    done = place.run(job_id)
    assert place.ended(job_id) == (JobStatus.COMPLETED, None)
    assert [(s.sample_index, s.condition) for s in done] == [
        (0, "plain"), (0, "steered"), (1, "plain"), (1, "steered")
    ]  # fmt: skip
    alone = place.run(place.submit(inputs=INPUTS, capture=capture, interventions=[everywhere]))
    for plain, twin, single in zip(done[::2], done[1::2], alone, strict=True):
        assert plain.seed == twin.seed
        assert plain.completion == single.completion
        prompt = plain.prompt_tokens
        assert prompt is not None
        before, after = place.rows(plain, HOOK), place.rows(twin, HOOK)
        assert torch.allclose(before, place.rows(single, HOOK), atol=1e-4)
        assert torch.allclose(before[:prompt], after[:prompt], atol=1e-4)
        # the first generated token is the same; what the model computed for it differs by the vector
        assert list(place.reader(plain).token_ids())[prompt] == list(place.reader(twin).token_ids())[prompt]
        shift = after[prompt] - before[prompt]
        assert torch.allclose(shift, 4 * torch.tensor(numbers), atol=1e-3)
        assert torch.equal(place.rows(twin, "resid_pre.1"), after)
        mid, twins_mid = (place.rows(sample, "resid_mid.0")[prompt] for sample in (plain, twin))
        assert torch.allclose(mid, twins_mid, atol=1e-4)  # what comes before does not show it
    record = {
        "hook": "mlp_out.1", "op": "scale", "coefficient": 0.5, "positions": {"start": 1, "stop": None},
        "vector_id": None, "vector_sha256": None, "source": None, "features": None, "scale_by": None,
            "sae": None, "latent": None, "after": None,
    }  # fmt: skip
    own = {
        "hook": HOOK, "op": "add", "coefficient": 4.0, "positions": "generated",
        "vector_id": vector_id, "vector_sha256": vector_sha256(numbers),
        "source": None, "features": None, "scale_by": None,
            "sae": None, "latent": None, "after": None,
    }  # fmt: skip
    assert [i.model_dump() for i in place.reader(done[0]).manifest.interventions] == [record]
    assert [i.model_dump() for i in place.reader(done[1]).manifest.interventions] == [record, own]


@pytest.mark.parametrize("kind", ["capture", "evaluation"])
def test_a_thought_is_steered_and_its_twin_is_not(place: Place, kind: str) -> None:
    """Both job kinds; the rows that moved are those of the segment in the session's own manifest."""
    numbers = [((i * 29) % 13 - 6) / 2.0 for i in range(96)]
    thinking = {"hook": "mlp_out.1", "op": "add", "vector": numbers, "positions": ["think"]}
    question = "12+13?<think>\n"
    given: dict[str, Any] = {"inputs": [{"prompt": question}]}
    if kind == "evaluation":
        given = {"rows": [{"question": question, "answer": "#### 25"}], "enable_thinking": True}
    job_id = place.submit(
        **given,
        sampling={"max_tokens": 40},
        capture={"hooks": ["resid_mid.1", "mlp_in.1", "resid_post.1"]},
        conditions=[{"name": "plain"}, {"name": "steered", "interventions": [thinking]}],
    )
    done = {s.condition: s for s in place.run(job_id)}
    assert place.ended(job_id) == (JobStatus.COMPLETED, None)
    for condition, sample in done.items():
        reader = place.reader(sample)
        manifest, rows_of = reader.manifest, {h: place.rows(sample, h) for h in reader.manifest.tensors}
        # what the MLP added, less what it adds to the same input without the edit
        mlp: Any = place.bench.engine.model.hf.get_submodule("model.layers.1.mlp")
        with torch.inference_mode():
            added = rows_of["resid_post.1"] - rows_of["resid_mid.1"] - mlp(rows_of["mlp_in.1"])
        moved = set((added.abs().amax(-1) > 0.5).nonzero().flatten().tolist())
        run = range(len(added))
        thought = {
            t for s in manifest.segments if s.name == "think" for t in range(s.start, s.stop) if t in run
        }
        assert thought
        assert moved == (thought if condition == "steered" else set())
        if moved:
            want = torch.tensor(numbers).expand(len(moved), -1)
            assert torch.allclose(added[sorted(moved)], want, atol=1e-3)
            assert manifest.interventions[0].positions == ["think"]


def test_an_evaluation_without_capture_is_steered_too(place: Place) -> None:
    job_id = place.submit(
        rows=[{"question": "12+13?", "answer": "#### 25"}],
        conditions=[
            {"name": "baseline"},
            {"name": "off", "interventions": [{"hook": "resid_post.1", "op": "zero"}]},
            {"name": "same", "interventions": [{"hook": HOOK, "op": "scale", "coefficient": 1}]},
        ],
    )
    done = {s.condition: s for s in place.run(job_id)}
    assert place.ended(job_id) == (JobStatus.COMPLETED, None)
    assert done["same"].completion == done["baseline"].completion
    assert done["off"].completion != done["baseline"].completion
    assert all(s.session_id is None for s in done.values())


@pytest.mark.parametrize(
    ("intervention", "says"),
    [
        ({"hook": "resid_post.7", "op": "zero"}, "layers 0 to 1"),
        ({"hook": "resid_post.1", "op": "add", "vector": [1.0]}, "1 numbers, resid_post.1 is 96 wide"),
        (
            {"hook": "model.layers.0.mlp.up_proj.output", "op": "replace", "vector": [1.0] * 96},
            "96 numbers, model.layers.0.mlp.up_proj.output is",
        ),
        ({"hook": HOOK, "op": "add", "vector_id": "own"}, "it was deleted after the job was submitted"),
        ({"hook": HOOK, "op": "add", "vector_id": "another"}, "another"),
    ],
)
def test_what_the_service_could_not_check_fails_the_job_at_its_start(
    place: Place, intervention: dict[str, Any], says: str
) -> None:
    vector_id = place.keep([1.0] * 96, model="another" if says == "another" else None)
    if "vector_id" in intervention:
        intervention = intervention | {"vector_id": vector_id}
    job_id = place.submit(inputs=INPUTS, conditions=[{"name": "a", "interventions": [intervention]}])
    if "deleted" in says:
        with place.database.write() as session:
            vectors.delete(session, vector_id)
    place.run(job_id)
    status, error = place.ended(job_id)
    assert status is JobStatus.FAILED
    assert error is not None and says in error.message


def test_rows_of_another_session_are_patched_in_at_every_hook_and_position(place: Place) -> None:
    """A condition for each; the last layer's row at the last token is the other text's answer."""
    capture = {"points": ["attn_out", "mlp_out", "resid_post", "final_norm"], "layers": "all"}
    options: dict[str, Any] = {"capture": capture, "sampling": {"max_tokens": 1}}
    source, target = place.run(place.submit(inputs=INPUTS, **options))
    count = target.prompt_tokens
    assert count is not None
    hooks = [name for name in place.reader(source).manifest.tensors if name != "final_norm"]
    conditions = []
    for hook in hooks:
        for position in range(count):
            row = {"session": source.session_id, "row": -1}
            patch = {"hook": hook, "op": "replace", "from": row, "positions": [position]}
            conditions.append({"name": f"{hook}.{position}", "interventions": [patch]})
    assert len(conditions) > 64
    job_id = place.submit(inputs=INPUTS[1:], conditions=[{"name": "clean"}, *conditions], **options)
    done = {sample.condition: sample for sample in place.run(job_id)}
    assert place.ended(job_id) == (JobStatus.COMPLETED, None)
    last = f"resid_post.1.{count - 1}"
    ends = {name: place.rows(done[name], "final_norm")[-1] for name in (last, "clean", "resid_post.1.0")}
    assert torch.allclose(ends[last], place.rows(source, "final_norm")[-1], atol=1e-5)
    assert not torch.allclose(ends[last], ends["clean"], atol=1e-2)
    assert torch.equal(ends["resid_post.1.0"], ends["clean"]), "the last layer's earlier rows have no effect"
    for hook in hooks:
        given = place.rows(source, hook)[-1]
        assert torch.equal(place.rows(done[f"{hook}.3"], hook)[3], given)
    (record,) = place.reader(done[last]).manifest.interventions
    assert record.source is not None
    assert (record.source.session, record.source.row) == (source.session_id, -1)
    assert record.vector_sha256 == vector_sha256(place.rows(source, "resid_post.1")[-1].tolist())
