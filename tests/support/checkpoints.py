"""Checkpoints with random weights, also in their norms and biases, and the demo's tokenizer."""

import shutil
from pathlib import Path
from typing import Any

from actograph.analysis.checkpoint import Checkpoint
from actograph.demo import MODEL_DIR
from worker.analysis import model_end


class InProcess:
    """A `ModelEnd` without a process, which takes seconds to start."""

    def __init__(self, folder: Path) -> None:
        self._checkpoint = Checkpoint(folder)
        self.layers, self.width = self._checkpoint.layers, self._checkpoint.width
        self.vocabulary = self._checkpoint.vocabulary

    def ask(self, name: str, *arguments: Any, **options: Any) -> Any:
        return model_end.FUNCTIONS[name](self._checkpoint, *arguments, **options)

    def __enter__(self) -> "InProcess":
        return self

    def __exit__(self, *_: object) -> None: ...


def save_random(config: Any, folder: Path) -> Any:
    """Save a model of a config into a folder, and return it. Weights are wide enough that tokens differ."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    automatic: Any = AutoModelForCausalLM
    model = automatic.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.2)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL_DIR / name, folder / name)
    return model


def residual_rows(model: Any, ids: list[int]) -> tuple[list[Any], Any]:
    """Rows before the first layer and after each one, [tokens, width], and the logits, of a whole forward."""
    import torch

    decoder, rows, handles = model.get_decoder(), [], []
    decoder = decoder.model if decoder is model else decoder
    layers = decoder.layers if hasattr(decoder, "layers") else decoder.h

    def keep(tensor: Any) -> None:
        rows.append((tensor[0] if isinstance(tensor, tuple) else tensor)[0].clone())

    handles.append(layers[0].register_forward_pre_hook(lambda _, inputs: keep(inputs[0])))
    for layer in layers:
        handles.append(layer.register_forward_hook(lambda _, __, output: keep(output)))
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    for handle in handles:
        handle.remove()
    return [one.numpy() for one in rows], logits.double().numpy()
