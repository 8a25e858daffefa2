"""Structures of models that need not be there."""

from typing import Any

from actograph.contract.models import HookInfo, ModelStructure


def model_structure(hooks: dict[str, HookInfo], **changes: Any) -> ModelStructure:
    """A small model with these hooks."""
    values: dict[str, Any] = {
        "model": "demo", "architecture": "X", "num_layers": 1, "hidden_size": 8, "vocab_size": 100,
        "context_length": 64, "dtype": "float32", "device": "cpu", "num_parameters": 1000,
        "chat_template": False, "eos_token_ids": [], "hooks": hooks,
        "module_locations": [info.location for info in hooks.values()],
    }  # fmt: skip
    return ModelStructure(**values | changes)
