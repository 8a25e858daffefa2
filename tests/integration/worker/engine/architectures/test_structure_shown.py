"""What a structure shows of a model: its config's numbers, and every name by which a hook may be called."""

from collections.abc import Callable
from typing import Any

import pytest

from actograph.contract import hooks as grammar
from actograph.contract.model_loads import with_savepoints
from worker.engine.engine import Engine

pytestmark = pytest.mark.integration

EngineOf = Callable[[str], Engine]


def test_the_numbers_are_those_of_the_model(architecture: str, engine_of: EngineOf) -> None:
    engine = engine_of(architecture)
    structure, config = engine.structure, engine.model.text_config
    assert structure.architecture == type(engine.model.hf).__name__
    assert structure.num_layers == config.num_hidden_layers
    assert structure.hidden_size == config.hidden_size
    assert structure.vocab_size == config.vocab_size
    assert structure.context_length == 160
    assert (structure.dtype, structure.device) == ("float32", "cpu")
    experts = [getattr(config, n, None) for n in ("num_local_experts", "num_experts", "n_routed_experts")]
    assert structure.num_experts == next(filter(None, experts), None)
    if structure.num_experts is not None:
        assert structure.experts_per_token == config.num_experts_per_tok
    assert set(structure.module_tensors) == set(structure.module_locations)
    for info in structure.hooks.values():
        tensor = structure.module_tensors[info.location]
        assert (tensor.width, tensor.dtype) == (info.width, info.dtype)
    tails = {location for location, tensor in structure.module_tensors.items() if tensor.tail_only}
    modules: Any = engine.model.hf
    head = next(n for n, module in modules.named_modules() if module is modules.get_output_embeddings())
    assert tails == {f"{head}.input", f"{head}.output"}


def test_every_name_is_shown_and_means_its_hook(architecture: str, engine_of: EngineOf) -> None:
    structure = with_savepoints(engine_of(architecture).structure, {"mine": "resid_post.1"})
    assert "mine" in structure.hooks["resid_post.1"].aliases
    for hook, info in structure.hooks.items():
        assert info.aliases and {grammar.resolve(name, structure) for name in info.aliases} == {hook}


def test_a_path_that_two_points_share_is_a_name_of_one(engine_of: EngineOf) -> None:
    """In Phi one norm stands before both attention and MLP."""
    hooks: Any = engine_of("phi").structure.hooks
    assert hooks["attn_in.1"].location == hooks["mlp_in.1"].location
    shared = hooks["attn_in.1"].location
    assert (shared in hooks["attn_in.1"].aliases) != (shared in hooks["mlp_in.1"].aliases)
