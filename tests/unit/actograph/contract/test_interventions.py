"""The intervention contract: what is accepted, what is refused and with which words."""

from typing import Any

import pytest
from pydantic import ValidationError

from actograph.contract.errors import InvalidRequest, UnknownHook
from actograph.contract.interventions import (
    Intervention,
    StoredVector,
    check_stored,
    check_width,
    of_columns,
    resolve_hook,
)
from actograph.contract.models import HookInfo, ModelStructure
from tests.support.structures import model_structure

VEC = "vec_" + "a" * 32
ADD: dict[str, Any] = {"hook": "resid_post.1", "op": "add", "vector": [1.0, 2.0]}


def structure() -> ModelStructure:
    locations = {
        "resid_post.0": "model.layers.0.output",
        "router_logits.0": "model.layers.0.mlp.gate.output",
        "logits": "lm_head.output",
    }
    hooks = {n: HookInfo(location=at, width=2, dtype="float32") for n, at in locations.items()}
    return model_structure(
        hooks,
        module_locations=[*locations.values(), "model.layers.0.mlp.gate.output.1"],
        unavailable={"final_norm": "no norm stands between the last layer and the head"},
    )


def test_refused(subtests: pytest.Subtests) -> None:
    for change, says in [
        ({"vector_id": VEC}, "exactly one of vector, vector_id, from and sae"),
        ({"vector": None}, "exactly one of vector, vector_id, from and sae"),
        ({"op": "zero"}, "takes no vector"),
        ({"op": "scale", "coefficient": 2}, "takes no vector"),
        ({"op": "scale", "vector": None}, "scale needs a coefficient"),
        ({"op": "zero", "vector": None, "coefficient": 2}, "zero takes no coefficient"),
        ({"op": "project_out", "vector": [0.0, -0.0]}, "not zero"),
        ({"op": "project_out", "vector": [1e-60]}, "not zero"),
        ({"scale_by": "row_norm", "vector": [0.0, -0.0]}, "not zero"),
        ({"scale_by": "row_norm", "op": "replace"}, "it is a field of add"),
        ({"scale_by": "norm"}, "row_norm"),
        ({"op": "multiply"}, "add"),
        ({"vector": []}, "at least 1"),
        ({"vector": [float("nan")]}, "finite"),
        ({"vector": [float("inf")]}, "finite"),
        ({"vector": [1e39]}, "less than or equal to 3402823"),
        ({"coefficient": float("nan")}, "finite"),
        ({"vector": None, "vector_id": "a b"}, "names no vector"),
        ({"positions": "last"}, "only when the generation has ended, too late to change it"),
        ({"positions": [3, 3]}, "the numbers must differ"),
        ({"positions": ["think", "elsewhere"]}, "tool_result"),
        ({"positions": {"stride": 0}}, "greater than or equal to 1"),
        ({"positions": []}, "at least 1"),
        ({"positions": {"start": 3, "stop": 3}}, "larger than start"),
        ({"positions": {"from": 3}}, "unknown field"),
        ({"hook": ""}, "at least 1"),
        ({"layer": 3}, "unknown field"),
    ]:
        with subtests.test(change=change, says=says):
            with pytest.raises(ValidationError) as caught:
                Intervention.model_validate(ADD | change)
            assert says in str(caught.value)


def test_a_hook_by_any_of_its_names_and_no_router() -> None:
    for name in ("resid_post.0", "blocks.0.hook_resid_post", "layers_output[0]", "model.layers[0].output"):
        assert resolve_hook(name, structure(), "interventions.0.hook") == "resid_post.0"
    assert resolve_hook("logits", structure(), "h") == "logits"
    for name, says in [
        ("router_logits.0", "not changed"),
        ("model.layers.0.mlp.gate.output", "not changed"),
        ("model.layers.0.mlp.gate.output.1", "not changed"),
        ("final_norm", "no norm stands"),
        ("resid_post.7", "layers 0 to 0"),
        ("elsewhere", "no such hook"),
    ]:
        with pytest.raises(UnknownHook, match=says) as caught:
            resolve_hook(name, structure(), "interventions.0.hook")
        assert caught.value.param == "interventions.0.hook"


def test_a_stored_vector_must_be_the_models_and_have_a_direction() -> None:
    stored = StoredVector(
        id=VEC, name="n", hook="h", width=1, model="m", sha256="", created_at=0, vector=[0.0]
    )

    def steer(**more: Any) -> Intervention:
        return Intervention.model_validate({"hook": "h", "op": "add", "vector_id": VEC} | more)

    check_stored(steer(), stored, "m", "p")
    with pytest.raises(InvalidRequest, match="for the model m, not other"):
        check_stored(steer(), stored, "other", "p")
    for more in ({"op": "project_out"}, {"scale_by": "row_norm"}):
        with pytest.raises(InvalidRequest, match="not zero"):
            check_stored(steer(**more), stored, "m", "p")


def test_vectors_of_heads_are_as_long_as_these_or_as_the_hook() -> None:
    columns = (2, 3)
    for length in (2, 8):
        check_width("z.0", length, 8, "vector", columns)
    with pytest.raises(InvalidRequest, match=r"z\.0 is 8 wide, and the chosen heads 2"):
        check_width("z.0", 4, 8, "vector", columns)
    wide = [0.0, 1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0]
    add, *directed = (
        Intervention.model_validate({"hook": "z.0", "op": "add", "vector_id": VEC} | more)
        for more in ({}, {"op": "project_out"}, {"scale_by": "row_norm"})
    )
    assert of_columns(wide, columns, add, "vector") == [2.0, 3.0]
    assert of_columns([5.0, 6.0], columns, add, "vector") == [5.0, 6.0]
    assert of_columns(wide, None, add, "vector") == wide
    for one in directed:
        with pytest.raises(InvalidRequest, match="not zero in the chosen heads"):
            of_columns(wide, (5, 6), one, "vector")
        with pytest.raises(InvalidRequest, match=r"not zero$"):
            of_columns([0.0, 0.0], (5, 6), one, "vector")
