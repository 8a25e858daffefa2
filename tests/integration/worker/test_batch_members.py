"""Samples that can run at once and differ in one thing each: each is what it is in a job of its own."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from actograph import tensor_files
from actograph.contract.chat_job import BatchJobSpec, ChatInput, ChatJobSpec
from actograph.contract.job_specs import job_spec_adapter
from actograph.contract.resources import Sample, SampleStatus
from actograph.contract.specs import SamplingSpec
from storage import samples
from storage.jobs import jobs
from storage.samples import NewSample
from storage.sessions.writer import SessionReader
from tests.support.engine_double import Watched
from tests.support.submitting import insert

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

MODEL = "tiny-qwen3"
VECTOR = [((i * 37) % 11 - 5) / 2.0 for i in range(96)]
OTHER = [((i * 53) % 13 - 6) / 2.0 for i in range(96)]
EDIT: dict[str, Any] = {"hook": "resid_post.0", "op": "add", "vector": VECTOR, "coefficient": 0.5}
CAPTURE: dict[str, Any] = {"hooks": ["resid_post.0", "mlp_in.1", "logits"]}
#: hot, since the model is sure of itself: less would choose the same tokens whatever differs; one token comes
#: twice, so that penalties change something
WARM: dict[str, Any] = {"temperature": 3.0, "top_p": 0.98, "seed": 4, "max_tokens": 8}
PROMPT = "Tom has 34 books and Mia has"
#: what a request may say, beside what they all say; each differs from the first in one thing
LINES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "again": {},
    "text": {"prompt": "The cat"},
    "seed": {"sampling": {"seed": 5}},
    "shorter": {"max_tokens": 2},
    "only read": {"max_tokens": 0, "echo": True, "top_logprobs": 1},
    "log probabilities": {"top_logprobs": 2},
    "with the prompt's": {"top_logprobs": 1, "echo": True},
    "temperature": {"sampling": {"temperature": 4.5}},
    "greedy": {"sampling": {"temperature": 0.0}},
    "top_p": {"sampling": {"top_p": 0.5}},
    "top_k": {"sampling": {"top_k": 2}},
    "stop": {"sampling": {"stop": ["a", "e"]}},
    "presence": {"sampling": {"presence_penalty": 2.0}},
    "frequency": {"sampling": {"frequency_penalty": 1.5}},
    "bias": {"sampling": {"logit_bias": {"7": 60.0}}},
    "edit": {"interventions": [EDIT]},
    "coefficient": {"interventions": [EDIT | {"coefficient": -1.0}]},
    "vector": {"interventions": [EDIT | {"vector": OTHER}]},
    "operation": {"interventions": [EDIT | {"op": "replace"}]},
    "edited tokens": {"interventions": [EDIT | {"positions": "generated"}]},
    "edited range": {"interventions": [EDIT | {"positions": {"start": 1, "stop": 4}}]},
    "edited stride": {"interventions": [EDIT | {"positions": {"stride": 2}}]},
    "no capture": {"capture": None},
    "capture off": {"capture": None},
    "hooks": {"capture": {"hooks": ["resid_post.1"]}},
    "dtype": {"capture": CAPTURE | {"dtype": "float16"}},
    "positions": {"capture": CAPTURE | {"positions": "last"}},
    "stride": {"capture": CAPTURE | {"positions": {"stride": 3}}},
    "tokens": {"capture": CAPTURE | {"positions": [0, -1]}},
    "answers": {"capture": CAPTURE | {"positions": "answer"}},
    "features": {"capture": CAPTURE | {"features": {"indices": [5, 2]}}},
    "first features": {"capture": CAPTURE | {"features": {"first": 3}}},
    "mean": {"capture": CAPTURE | {"reduce": "mean"}},
    "largest": {"capture": CAPTURE | {"reduce": "max"}},
    "statistics": {"capture": CAPTURE | {"stats": {"threshold": 0.5}}},
    "statistics alone": {"capture": CAPTURE | {"stats": {"tensors": False}}},
}
#: what a request says by itself in a batch of one kind
OWN = ("prompt", "max_tokens", "echo", "top_logprobs")


def line(name: str) -> dict[str, Any]:
    """A request as a batch stores it."""
    changes: dict[str, Any] = {"capture": CAPTURE, "max_tokens": 8} | LINES[name]
    sampling = SamplingSpec.model_validate(WARM | changes.pop("sampling", {}))
    given = ChatInput.model_validate({"custom_id": name, "prompt": PROMPT, "sampling": sampling} | changes)
    return given.stored


def submit_lines(bench: "Bench", names: list[str]) -> str:
    """A batch of these requests, in their order."""
    spec = BatchJobSpec(
        model=MODEL,
        sampling=SamplingSpec(max_tokens=64),
        batch_id="batch_" + "0" * 32,
        endpoint="/v1/completions",
        requests=len(names),
        max_consecutive_failures=0,
    )
    new = [
        NewSample(
            sample_index=i, condition="", epoch=0, input=(own := line(name)), seed=own["sampling"]["seed"]
        )
        for i, name in enumerate(names)
    ]
    return insert(bench.database, spec, new)


def submit_chat(bench: "Bench", name: str) -> str:
    """The same request as a job of its own kind, which others may share a batch with."""
    changes: dict[str, Any] = {"max_tokens": 8} | LINES[name]
    body: dict[str, Any] = {"model": MODEL, "capture": CAPTURE, "priority": 0}
    body |= {key: value for key, value in changes.items() if key in ("capture", "interventions")}
    given = {"prompt": PROMPT} | {key: value for key, value in changes.items() if key in OWN}
    sampling = WARM | changes.get("sampling", {})
    spec = ChatJobSpec.model_validate(
        body | {"inputs": [given | {"sampling": sampling}], "sampling": sampling}
    )
    return insert(bench.database, spec)


def kept(bench: "Bench", sample: Sample) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sample's part of the manifest, and its tensors with their tokens."""
    assert sample.session_id is not None
    reader = SessionReader(bench.store, sample.session_id)
    reader.verify()
    said = reader.manifest.model_dump(mode="json")
    for name in ("session_id", "job_id", "sample_id", "sample_index", "created_at", "files", "shards"):
        said.pop(name, None)
    shapes = {
        name: (t["shape"], t["dtype"], t["first_row"], t["over"]) for name, t in said.pop("tensors").items()
    }
    tensors = {}
    for name, tensor in reader.manifest.tensors.items():
        part = reader.rows(name, 0, tensor.shape[0])
        tensors[name] = tensor_files.raw_array(part.dtype, part.shape, part.data)
    return said | {"tensors": shapes, "tokens": reader.token_ids()}, tensors


def assert_same(bench: "Bench", name: str, got: Sample, alone: Sample) -> None:
    assert got.status is alone.status is SampleStatus.COMPLETED, (name, got.error, alone.error)
    for part in ("prompt", "completion", "finish_reason", "prompt_tokens", "generated_tokens", "seed"):
        assert getattr(got, part) == getattr(alone, part), (name, part)
    assert (got.session_id is None) == (alone.session_id is None), name
    if got.session_id is None:
        return
    (said, tensors), (other, wanted) = kept(bench, got), kept(bench, alone)
    assert said == other, name
    for hook in wanted:
        exact = 1e-2 if wanted[hook].dtype == np.float16 else 1e-3 if "kurtosis" in hook else 1e-4
        np.testing.assert_allclose(
            tensors[hook], wanted[hook], rtol=exact, atol=exact, err_msg=f"{name} {hook}", equal_nan=True
        )


def logprobs_of(bench: "Bench", job_id: str, place: int = 0) -> Any:
    with bench.database.read() as session:
        return list(samples.find(session, job_id, limit=1000)[0])[place].logprobs


def assert_same_logprobs(got: Any, want: Any) -> None:
    assert (got is None) == (want is None)
    for one, other in zip(got or (), want or (), strict=True):
        assert one["token"] == other["token"] and one.get("top", {}).keys() == other.get("top", {}).keys()
        assert one.get("logprob", 0) == pytest.approx(other.get("logprob", 0), abs=1e-4)


def run_all(bench: "Bench", *job_ids: str) -> int:
    """Drain these jobs; returns how many samples ran at once, at most."""
    engine = bench.engine
    watched: Any = Watched(engine)
    bench.engine = watched
    try:
        bench.drain(slots=64).look()
    finally:
        bench.engine = engine
    assert not [job_id for job_id in job_ids if bench.status(job_id) in jobs.ACTIVE]
    return int(watched.most)


@pytest.mark.soak
def test_each_line_of_a_batch_is_what_it_is_alone(bench: "Bench") -> None:
    names = list(LINES)
    together = submit_lines(bench, names)
    assert run_all(bench, together) >= 8
    for place, (name, got) in enumerate(zip(names, bench.samples(together), strict=True)):
        alone = submit_lines(bench, [name])
        run_all(bench, alone)
        assert_same(bench, name, got, bench.samples(alone)[0])
        assert_same_logprobs(logprobs_of(bench, together, place), logprobs_of(bench, alone))
        said = kept(bench, got)[0] if got.session_id else {}
        if said.get("sampling"):  # as the line has it, and not as the batch's first
            wanted = line(name)["sampling"] | {"max_tokens": line(name)["max_tokens"]}
            assert SamplingSpec.model_validate(said["sampling"]) == SamplingSpec.model_validate(wanted)


def test_each_difference_is_seen(bench: "Bench") -> None:
    """Compared values differ between the lines, so a neighbour's value would be noticed."""
    job_id = submit_lines(bench, list(LINES))
    run_all(bench, job_id)
    seen: dict[str, Any] = {}
    for name, sample in zip(LINES, bench.samples(job_id), strict=True):
        assert sample.status is SampleStatus.COMPLETED, (name, sample.error)
        rows = kept(bench, sample)[1] if sample.session_id else {}
        shown = {
            hook: (v.shape, str(v.dtype), np.round(v.astype(np.float64), 3).tobytes())
            for hook, v in rows.items()
        }
        logprobs = logprobs_of(bench, job_id, list(LINES).index(name))
        seen[name] = (sample.completion, shown, logprobs and len(logprobs), sample.prompt)
    base, twins = seen["as it is"], {"as it is", "again"}
    assert seen["again"] == base
    assert [name for name, one in seen.items() if one == base and name not in twins] == []


def test_each_chat_is_what_it_is_alone_whoever_runs_beside_it(bench: "Bench") -> None:
    together = [submit_chat(bench, name) for name in LINES]
    assert run_all(bench, *together) >= 6
    for name, job_id in list(zip(LINES, together, strict=True))[::2]:
        alone = submit_chat(bench, name)
        assert run_all(bench, alone) == 1
        assert_same(bench, name, bench.samples(job_id)[0], bench.samples(alone)[0])
        assert_same_logprobs(logprobs_of(bench, job_id), logprobs_of(bench, alone))


CONDITIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "edit": {"interventions": [EDIT]},
    "coefficient": {"interventions": [EDIT | {"coefficient": -1.0}]},
    "vector": {"interventions": [EDIT | {"vector": OTHER}]},
    "tokens": {"interventions": [EDIT | {"positions": "generated"}]},
    "range": {"interventions": [EDIT | {"positions": {"start": 2}}]},
    "list": {"interventions": [EDIT | {"positions": [0, -1]}]},
    "operation": {"interventions": [EDIT | {"op": "project_out"}]},
    "hook": {"interventions": [EDIT | {"hook": "mlp_out.1"}]},
    "two": {"interventions": [EDIT, {"hook": "resid_post.0", "op": "scale", "coefficient": -0.5}]},
    "turned": {"interventions": [{"hook": "resid_post.0", "op": "scale", "coefficient": -0.5}, EDIT]},
}
INPUTS = [{"prompt": "one and two"}, {"prompt": "Tom has 34 books and Mia has 57 books. How many?"}]


def submit_conditions(bench: "Bench", names: list[str], **capture: Any) -> str:
    conditions = [{"name": name} | CONDITIONS[name] for name in names]
    spec = job_spec_adapter.validate_python(
        {
            "kind": "capture", "model": MODEL, "inputs": INPUTS, "sampling": WARM,
            "capture": CAPTURE | capture, "conditions": conditions,
        }
    )  # fmt: skip
    return insert(bench.database, spec)


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "capture",
    [{}, {"positions": {"stride": 2}, "reduce": "mean"}, {"mode": "prefill", "positions": "prompt"}],
    ids=["rows", "mean", "prefill"],
)
def test_each_condition_is_what_it_is_alone(bench: "Bench", capture: dict[str, Any]) -> None:
    names = [name for name in CONDITIONS if capture.get("mode") != "prefill" or name != "tokens"]
    together = submit_conditions(bench, names, **capture)
    assert run_all(bench, together) > len(INPUTS), "samples of several conditions run at once"
    got = {(sample.condition, sample.sample_index): sample for sample in bench.samples(together)}
    for name in names:
        alone = submit_conditions(bench, [name], **capture)
        run_all(bench, alone)
        for sample in bench.samples(alone):
            assert_same(bench, name, got[name, sample.sample_index], sample)
