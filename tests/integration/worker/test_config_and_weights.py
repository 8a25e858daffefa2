"""A config that does not fit its weights is refused, whatever it would have transformers build."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from actograph.contract.errors import ModelRefused
from worker.engine.model.load import load_model

pytestmark = pytest.mark.integration


def checkpoint(folder: Path, shared: Path, **changes: Any) -> str:
    """A copy of the small model with another config; None removes a field."""
    shutil.copytree(shared / "models" / "tiny-qwen3", folder / "model")
    for path in [folder / "model", *(folder / "model").iterdir()]:
        path.chmod(0o755)
    config = folder / "model" / "config.json"
    fields = json.loads(config.read_text()) | changes
    config.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))
    return str(folder / "model")


def test_a_config_that_does_not_fit_is_refused_with_the_numbers(
    tmp_path: Path, shared: Path, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"num_hidden_layers": 4, "layer_types": None}, "22 weights are missing .model.layers.2"),
        (
            {"num_hidden_layers": 1, "layer_types": ["full_attention"]},
            "11 weights belong to layers that the config does not have .model.layers.1",
        ),
        ({"hidden_size": 128}, r"embed_tokens.weight is \[577, 96\], the config makes it \[577, 128\]"),
        ({"hidden_size": 1 << 20}, r"the config makes it \[577, 1048576\]"),
        ({"vocab_size": 600}, r"1 weights have another shape .model.embed_tokens.weight is \[577, 96\]"),
        ({"num_attention_heads": 7}, "have another shape"),
        ({"num_hidden_layers": 10**7, "layer_types": None}, "num_hidden_layers is 10000000, .* 24 tensors"),
        ({"vocab_size": 1 << 33}, "vocab_size is 8589934592"),
        ({"head_dim": 1 << 30}, "head_dim is 1073741824"),
        ({"text_config": {"num_hidden_layers": 10**9}}, "num_hidden_layers is 1000000000"),
    ]
    for number, (changes, says) in enumerate(cases):
        source = checkpoint(tmp_path / str(number), shared, **changes)
        message = f"config.json does not fit the weights: .*{says}"
        with subtests.test(says), pytest.raises(ModelRefused, match=message):
            load_model(source, name="tiny", device="cpu")
