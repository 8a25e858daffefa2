"""What an evaluation with tools may ask for."""

from typing import Any

import pytest
from pydantic import ValidationError

from actograph.contract.job_specs import EvaluationSpec

TOOLS: dict[str, Any] = {"tools": "calculator"}


def spec(**changes: Any) -> EvaluationSpec:
    body: dict[str, Any] = {"kind": "evaluation", "model": "m", "dataset": {"path": "rows.jsonl"}}
    return EvaluationSpec.model_validate(body | changes)


def test_a_condition_may_have_tools_where_its_job_has_none() -> None:
    found = spec(conditions=[{"name": "a"}, {"name": "b", "tools": "calculator"}], max_turns=3)
    assert found.uses_tools
    assert [found.tools_of(condition) for condition in found.conditions] == ["none", "calculator"]
    without = spec(**TOOLS, conditions=[{"name": "a", "tools": "none"}])
    assert not without.uses_tools


def test_annotations_have_turns_for_every_calculation_and_need_no_template() -> None:
    assert spec(**TOOLS).max_turns == 8
    annotated = spec(**TOOLS, tool_format="annotations", apply_chat_template=False)
    assert annotated.max_turns == 32
    assert EvaluationSpec.model_validate(annotated.model_dump(mode="json")) == annotated
    assert spec(**TOOLS, tool_format="annotations", max_turns=5).max_turns == 5


def test_a_stored_spec_reads_itself_again() -> None:
    for found in (spec(), spec(**TOOLS, max_turns=2, capture={"points": ["embed"]})):
        assert EvaluationSpec.model_validate(found.model_dump(mode="json")) == found


def test_a_condition_changes_the_sampling_that_it_names() -> None:
    found = spec(
        sampling={"temperature": 0.5, "top_k": 7, "max_tokens": 9},
        conditions=[{"name": "hot", "sampling": {"temperature": 2.0}}],
    )
    changes = found.conditions[0].sampling
    assert changes is not None
    sampling = changes.applied(found.sampling)
    assert (sampling.temperature, sampling.top_k, sampling.max_tokens) == (2.0, 7, 9)


def test_what_several_turns_cannot_do_is_refused(subtests: pytest.Subtests) -> None:
    for changes, says in [
        ({"max_turns": 3}, "max_turns needs tools: calculator"),
        ({"tool_format": "annotations"}, "tool_format needs tools: calculator"),
        (TOOLS | {"tool_format": "xml"}, "template"),
        (TOOLS | {"tools": ["clock"]}, "calculator"),
        (TOOLS | {"apply_chat_template": False}, "chat template"),
        (
            TOOLS | {"interventions": [{"hook": "embed", "op": "zero", "positions": "last"}]},
            "only when the generation has ended",
        ),
        ({"conditions": [{"name": "a", "sampling": {"max_tokens": 3}}]}, "max_tokens"),
    ]:
        with subtests.test(changes=changes, says=says), pytest.raises(ValidationError, match=says):
            spec(**changes)
