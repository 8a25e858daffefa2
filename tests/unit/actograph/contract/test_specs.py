"""Job specs: defaults, refusals and what is derived from them."""

from typing import Any

import pytest
from pydantic import ValidationError

from actograph.contract.base import canonical_digest
from actograph.contract.job_specs import EvaluationSpec, job_spec_adapter
from actograph.contract.specs import CaptureSpec, sample_seed

EVALUATION: dict[str, Any] = {"kind": "evaluation", "model": "m", "dataset": {"path": "gsm8k/test.jsonl"}}


def test_everything_but_kind_model_and_inputs_has_a_default() -> None:
    spec = job_spec_adapter.validate_python(EVALUATION)
    assert isinstance(spec, EvaluationSpec)
    assert spec.sampling.temperature == 0.0
    assert [c.name for c in spec.conditions] == ["baseline"]
    assert spec.capture is None


def reading(capture: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    spec = {"mode": "prefill"} | (capture or {})
    return {"kind": "capture", "model": "m", "inputs": [{"prompt": "x"}], "capture": spec} | changes


def test_a_capture_in_prefill_mode_generates_nothing() -> None:
    body = {"kind": "capture", "model": "m", "inputs": [{"prompt": "x"}]}
    assert job_spec_adapter.validate_python(body | {"capture": {"mode": "prefill"}}).max_tokens == 0
    assert job_spec_adapter.validate_python(body).max_tokens == 512


def test_what_prefill_cannot_do_is_refused(subtests: pytest.Subtests) -> None:
    for body, reason in [
        (reading({"mode": "off"}), "capture.mode"),
        (reading({"mode": "generate"}, truncate=True), "truncate needs capture.mode: prefill"),
        (reading({"positions": "generated"}), "generates none"),
        (reading({"positions": ["prompt", "answer"]}), "generates none"),
        (reading(limit=3), "limit and offset need a dataset"),
        (reading(dataset={"path": "x.jsonl"}), "exactly one of inputs and dataset"),
        (reading(inputs=None), "exactly one of inputs and dataset"),
        (
            reading(interventions=[{"hook": "embed", "op": "zero", "positions": "generated"}]),
            r"interventions.0.positions: generated needs",
        ),
        (EVALUATION | {"capture": {"mode": "prefill"}}, "no answers to score"),
    ]:
        with subtests.test(body=body, reason=reason), pytest.raises(ValidationError, match=reason):
            job_spec_adapter.validate_python(body)


def test_the_published_example_is_accepted() -> None:
    spec = job_spec_adapter.validate_python(
        {
            "kind": "evaluation", "model": "Qwen/Qwen3-0.6B", "task": "gsm8k",
            "dataset": {"file_id": "file_" + "0" * 32}, "limit": 1319, "offset": 0, "tools": "none",
            "num_fewshot": 0, "enable_thinking": False, "epochs": 1,
            "conditions": [{"name": "baseline"}, {"name": "ep02", "suffix": "This is very important."}],
            "sampling": {
                "temperature": 0.0, "top_p": 1.0, "top_k": None, "max_tokens": 512, "seed": 0, "stop": [],
            },
            "capture": {
                "points": ["attn_in", "mlp_in"], "layers": [8, 12, 16], "positions": "all", "dtype": "model",
            },
            "interventions": [], "priority": 5, "tags": ["night"], "metadata": {},
        }
    )  # fmt: skip
    assert isinstance(spec, EvaluationSpec) and spec.capture is not None
    assert (spec.conditions[1].suffix, spec.capture.layers) == ("This is very important.", [8, 12, 16])


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


def test_a_capture_input_is_exactly_one_of_prompt_and_messages(subtests: pytest.Subtests) -> None:
    for given in [{}, {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, {"prompt": ""}]:
        with subtests.test(given=given), pytest.raises(ValidationError):
            job_spec_adapter.validate_python({"kind": "capture", "model": "m", "inputs": [given]})


def test_the_digest_knows_no_key_order_but_every_value() -> None:
    assert canonical_digest({"a": 1, "b": [2]}) == canonical_digest({"b": [2], "a": 1})
    assert CaptureSpec(points=["embed"]).digest() != CaptureSpec(points=["logits"]).digest()


def test_a_sample_seed_depends_on_seed_index_and_epoch() -> None:
    seeds = {sample_seed(s, i, e) for s in range(3) for i in range(20) for e in range(3)}
    assert len(seeds) == 180
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert sample_seed(1, 2, 3) == 8899725253796173630
