"""The engine that runs a job, and the jobs that `engine: streaming` refuses."""

from typing import Any

import pytest

from actograph.contract.engines import engine_use, of_spec
from actograph.contract.errors import InvalidRequest, UnknownHook
from actograph.contract.resources import EngineUse, HookInfo, ModelStructure

LOCATION = "model.layers.0.mlp.up_proj.output"


def structure(streaming: bool | None, refusal: str | None = None) -> ModelStructure:
    return ModelStructure(
        model="m", architecture="A", num_layers=1, hidden_size=8, vocab_size=9, context_length=64,
        dtype="float32", device="cpu", num_parameters=1, chat_template=False, eos_token_ids=[1],
        hooks={"resid_post.0": HookInfo(location="model.layers.0.output", width=8, dtype="float32")},
        module_locations=["model.layers.0.output", LOCATION],
        streaming=streaming, streaming_refusal=refusal,
    )  # fmt: skip


VERIFIED = structure(True)
REFUSED = structure(False, "it has layers of the kind mamba")


def test_auto_takes_the_verified_engine() -> None:
    assert engine_use("auto", VERIFIED, names=["resid_post.0", "model.layers.0.output"]).name == "streaming"
    assert engine_use("traced", VERIFIED) == EngineUse(name="traced", reason="the job requests it")
    assert engine_use("streaming", VERIFIED).name == "streaming"


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        (REFUSED, {}, "layers of the kind mamba"),
        (structure(None), {}, "was not verified on m"),
        (VERIFIED, {"prefill": True}, "reads texts"),
        (VERIFIED, {"names": ["resid_post.0", LOCATION]}, f"{LOCATION} is a module location"),
    ],
)
def test_auto_says_why_a_job_is_traced_and_streaming_is_refused_with_it(
    model: ModelStructure, options: dict[str, Any], reason: str
) -> None:
    use = engine_use("auto", model, **options)
    assert use.name == "traced"
    assert reason in use.reason
    with pytest.raises(InvalidRequest, match=reason) as refused:
        engine_use("streaming", model, **options)
    assert refused.value.param == "engine"


def test_a_stored_spec_is_judged_with_its_hooks_and_interventions() -> None:
    edit = {"hook": LOCATION, "op": "zero"}
    assert of_spec({"capture": None}, VERIFIED).name == "streaming"
    assert of_spec({"engine": "traced"}, VERIFIED).name == "traced"
    assert of_spec({"capture": {"hooks": ["resid_post.0"]}}, VERIFIED).name == "streaming"
    assert of_spec({"capture": {"hooks": [LOCATION]}}, VERIFIED).name == "traced"
    assert of_spec({"capture": {"hooks": [LOCATION], "mode": "off"}}, VERIFIED).name == "streaming"
    assert of_spec({"capture": {"mode": "prefill"}}, VERIFIED).name == "traced"
    assert of_spec({"interventions": [edit]}, VERIFIED).name == "traced"
    assert of_spec({"conditions": [{"interventions": [edit]}]}, VERIFIED).name == "traced"
    with pytest.raises(UnknownHook):
        of_spec({"interventions": [{"hook": "resid_post.7"}]}, VERIFIED)
