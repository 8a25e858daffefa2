"""Job specs: defaults, refusals and what is derived from them."""

from typing import Any

import pytest
from pydantic import ValidationError

from actograph.contract.job_specs import EvaluationSpec, field_errors, job_spec_adapter
from actograph.contract.specs import sample_seed

EVALUATION: dict[str, Any] = {"kind": "evaluation", "model": "m", "dataset": {"path": "gsm8k/test.jsonl"}}


def reading(capture: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    spec = {"mode": "prefill"} | (capture or {})
    return {"kind": "capture", "model": "m", "inputs": [{"prompt": "x"}], "capture": spec} | changes


def test_what_prefill_cannot_do_is_refused(subtests: pytest.Subtests) -> None:
    for body, reason in [
        (reading({"mode": "off"}), "capture.mode"),
        (reading({"mode": "generate"}, truncate=True), "truncate needs capture.mode: prefill"),
        (reading({"positions": "generated"}), "generates none"),
        (reading({"positions": ["prompt", "answer"]}), "generates none"),
        (reading(limit=3), "limit and offset need a dataset"),
        (reading(dataset={"path": "x.jsonl"}), "inputs or a dataset, not both"),
        (reading(inputs=None), "give the prompts"),
        (
            reading(interventions=[{"hook": "embed", "op": "zero", "positions": "generated"}]),
            r"interventions.0.positions: generated needs",
        ),
        (EVALUATION | {"capture": {"mode": "prefill"}}, "no answers to score"),
    ]:
        with subtests.test(body=body, reason=reason), pytest.raises(ValidationError, match=reason):
            job_spec_adapter.validate_python(body)


def test_a_wrong_field_is_refused_by_name(subtests: pytest.Subtests) -> None:
    for change, field in [
        ({"limit": -1}, "limit"),
        ({"limit": 0}, "limit"),
        ({"offset": -1}, "offset"),
        ({"tempreature": 1}, "tempreature"),
        ({"kind": "nonsense"}, None),
        ({"sampling": {"temperature": -0.1}}, "temperature"),
        ({"sampling": {"temperature": float("nan")}}, "temperature"),
        ({"sampling": {"top_p": 0}}, "top_p"),
        ({"sampling": {"max_tokens": 0}}, "max_tokens"),
        ({"sampling": {"stop": [""]}}, "stop"),
        ({"capture": {"points": ["resid_pst"]}}, "points"),
        ({"capture": {"layers": "8-20"}}, "layers"),
        ({"capture": {"layers": [-1]}}, "layers"),
        ({"capture": {"positions": "somewhere"}}, "positions"),
        ({"conditions": []}, "conditions"),
        ({"conditions": [{"name": "a"}, {"name": "a"}]}, "conditions"),
        ({"conditions": [{"name": "../up"}]}, "name"),
        ({"interventions": [{}]}, "interventions"),
        ({"dataset": {"file_id": "../../etc/passwd"}}, "file_id"),
        ({"dataset": {"path": "a", "hub": "b"}}, "dataset"),
        ({"dataset": {"hub": "../x"}}, "hub"),
        # without an owner it could be a builder of the datasets library, which reads local files
        ({"dataset": {"hub": "text"}}, "hub"),
        ({"priority": 10}, "priority"),
        ({"metadata": {"k": 1}}, "metadata"),
    ]:
        with subtests.test(change=change, field=field):
            with pytest.raises(ValidationError) as caught:
                job_spec_adapter.validate_python(EVALUATION | change)
            places = [str(part) for error in caught.value.errors() for part in error["loc"]]
            assert field is None or field in places


def test_a_sample_seed_depends_on_seed_index_and_epoch() -> None:
    seeds = {sample_seed(s, i, e) for s in range(3) for i in range(20) for e in range(3)}
    assert len(seeds) == 180
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert sample_seed(1, 2, 3) == 8899725253796173630


TOOLS: dict[str, Any] = {"tools": "calculator"}


def spec(**changes: Any) -> EvaluationSpec:
    body: dict[str, Any] = {"kind": "evaluation", "model": "m", "dataset": {"path": "rows.jsonl"}}
    return EvaluationSpec.model_validate(body | changes)


def test_a_condition_may_have_tools_where_its_job_has_none() -> None:
    found = spec(conditions=[{"name": "a"}, {"name": "b", "tools": "calculator"}], max_turns=3)
    assert found.uses_tools
    assert [found.tools_of(condition) for condition in found.conditions] == [(), ("calculator",)]
    without = spec(**TOOLS, conditions=[{"name": "a", "tools": "none"}])
    assert not without.uses_tools


def test_annotations_have_turns_for_every_calculation_and_need_no_template() -> None:
    assert spec(**TOOLS).max_turns == 8
    annotated = spec(**TOOLS, tool_format="annotations", apply_chat_template=False)
    assert annotated.max_turns == 32
    assert EvaluationSpec.model_validate(annotated.model_dump(mode="json")) == annotated
    assert spec(**TOOLS, tool_format="annotations", max_turns=5).max_turns == 5


def test_what_several_turns_cannot_do_is_refused(subtests: pytest.Subtests) -> None:
    for changes, says in [
        ({"max_turns": 3}, "max_turns needs tools: calculator"),
        ({"tool_format": "annotations"}, "tool_format needs tools: calculator"),
        (TOOLS | {"tool_format": "xml"}, "template"),
        (TOOLS | {"tools": []}, "at least 1 item"),
        (TOOLS | {"tools": ["calculator", "clock"], "tool_format": "annotations"}, "the calculator alone"),
        (TOOLS | {"apply_chat_template": False}, "chat template"),
        (
            TOOLS | {"interventions": [{"hook": "embed", "op": "zero", "positions": "last"}]},
            "only when the generation has ended",
        ),
        ({"conditions": [{"name": "a", "sampling": {"max_tokens": 3}}]}, "max_tokens"),
    ]:
        with subtests.test(changes=changes, says=says), pytest.raises(ValidationError, match=says):
            spec(**changes)


def test_a_field_of_an_inner_object_is_told_where_it_belongs(subtests: pytest.Subtests) -> None:
    for change, says in [
        ({"mode": "prefill"}, "mode: unknown field; it is a field of capture"),
        ({"max_tokens": 3}, "max_tokens: unknown field; it is a field of sampling"),
        ({"sample_hidden": 50}, "sample_hidden: unknown field; it is 'features' of capture"),
        ({"num_samples": 50}, "num_samples: unknown field. Did you mean 'limit'?"),
        ({"hub": "a/b"}, "hub: unknown field; it is a field of dataset"),
        ({"priorty": 3}, "priorty: unknown field. Did you mean 'priority'?"),
    ]:
        with subtests.test(change=change):
            body = {"kind": "capture", "model": "m", "inputs": [{"prompt": "x"}]} | change
            with pytest.raises(ValidationError) as caught:
                job_spec_adapter.validate_python(body)
            (fault,) = field_errors(caught.value.errors(include_url=False), body)
            assert str(fault) == says
