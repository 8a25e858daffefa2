"""Conditions and samples of one job that differ in one thing each: the export keeps them apart."""

from actograph.contract.job_specs import EvaluationSpec
from actograph.contract.resources import (
    ConditionResults,
    Job,
    JobStatus,
    Progress,
    Sample,
    SampleStatus,
    ToolMessage,
)
from storage.results.export import sample as sample_files
from storage.results.export.of_condition import runs

SAMPLING = {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "max_tokens": 64, "stop": ["Q:"]}
CONDITIONS: list[dict[str, object]] = [
    {"name": "plain"},
    {"name": "hot", "sampling": {"temperature": 1.5}},
    {"name": "narrow", "sampling": {"top_p": 0.2}},
    {"name": "few", "sampling": {"top_k": 3}},
]


def test_each_condition_has_its_own_sampling_and_results() -> None:
    spec = EvaluationSpec.model_validate(
        {
            "kind": "evaluation", "model": "m", "dataset": {"path": "p.jsonl"}, "sampling": SAMPLING,
            "conditions": CONDITIONS,
        }
    )  # fmt: skip
    job = Job(
        id="job_1", kind="evaluation", status=JobStatus.COMPLETED, model="m", created_at=1,
        progress=Progress(total=4, completed=4, failed=0), priority=5, spec=spec.model_dump(mode="json"),
        results_url="/",
    )  # fmt: skip
    names = [str(condition["name"]) for condition in CONDITIONS]
    results = {
        name: ConditionResults(alias=name, metrics={"m": float(i)}, samples=i, failed=0, truncated=0)
        for i, name in enumerate(names)
    }
    found = runs(job, results)
    assert list(found) == names
    assert {name: run.results for name, run in found.items()} == results
    shown = {
        name: (run.sampling.temperature, run.sampling.top_p, run.sampling.top_k, run.sampling.max_tokens)
        for name, run in found.items()
    }
    assert shown == {
        "plain": (0.5, 0.9, 40, 64),
        "hot": (1.5, 0.9, 40, 64),
        "narrow": (0.5, 0.2, 40, 64),
        "few": (0.5, 0.9, 3, 64),
    }
    assert all(run.is_one_of_several and run.stop[0] == "Q:" for run in found.values())


def test_of_several_turns_the_last_alone_says_how_the_sample_ended() -> None:
    said = [("assistant", "a"), ("tool", "1"), ("assistant", "b"), ("tool", "2"), ("assistant", "c")]
    sample = Sample(
        id="smp_1", job_id="job_1", sample_index=0, status=SampleStatus.COMPLETED, input={}, prompt="Q",
        completion="c", finish_reason="stop", losses=0,
        messages=[ToolMessage.model_validate({"role": role, "content": text}) for role, text in said],
    )  # fmt: skip
    turns = list(sample_files.turns(sample, None))
    assert [(turn["role"], turn.get("finish_reason")) for turn in turns] == [
        ("prompt", None), ("assistant", None), ("tool", None), ("assistant", None), ("tool", None),
        ("assistant", "stop"),
    ]  # fmt: skip
