"""A model in memory, with its tokenizer."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from actograph.contract.errors import ModelRefused
from worker.engine.model import devices
from worker.engine.model.adapters import Adapter
from worker.engine.model.handoffs import Handoffs
from worker.engine.model.quantized import Quantization

_CONTEXT_FIELDS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "n_ctx",
    "seq_length",
)
_COMPUTING = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
#: tokenizers without a limit report a larger number than this
_NO_LIMIT = 1 << 30


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """One set of weights in memory, with its tokenizer.

    Attributes:
        name: as the service calls it.
        hf: the transformers model.
        lm: nnsight's TransformersModel around `hf`; None for a model that several ranks share.
        adapter: the LoRA that is merged into it.
        quantization: of its checkpoint; None if that is not quantised.
        handoffs: which modules a trace sees; None without `lm`.
    """

    name: str
    hf: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    lm: Any = None
    handoffs: Handoffs | None = None
    revision: str | None = None
    adapter: Adapter | None = None
    quantization: Quantization | None = None

    @property
    def text_config(self) -> Any:
        """Config of the language model, which may be one part of a larger config."""
        return self.hf.config.get_text_config()

    @property
    def device(self) -> torch.device:
        """Device of the inputs and of the generated tokens: the embedding's."""
        hf: Any = self.hf
        if not devices.kept_on(hf):
            return next(self.hf.parameters()).device
        embedding = hf.get_input_embeddings()
        path = next(name for name, module in hf.named_modules() if module is embedding)
        return devices.compute_device(hf, path)

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Every device that computes, `device` first."""
        hf: Any = self.hf
        others = (devices.compute_device(hf, path) for path in devices.kept_on(hf))
        return tuple(dict.fromkeys([self.device, *others]))

    @property
    def layers_path(self) -> str:
        """Path of the decoder layers: the ModuleList of the length in the config.

        Raises:
            ModelRefused: the model has no such list.
        """
        count = getattr(self.text_config, "num_hidden_layers", None)
        lists = [
            (name, module)
            for name, module in self.hf.named_modules()
            if isinstance(module, torch.nn.ModuleList) and len(module) == count
        ]
        if not lists:
            raise ModelRefused(
                f"{self.name}: found no list of {count} decoder layers in {type(self.hf).__name__}; "
                "this architecture is not supported"
            )
        path, _ = max(lists, key=lambda item: sum(p.numel() for p in item[1].parameters()))
        return str(path)

    @property
    def layer_devices(self) -> list[torch.device]:
        """Device of each decoder layer and of its part of the key-value cache."""
        hf: Any = self.hf
        if not devices.kept_on(hf):
            return [self.device] * self.text_config.num_hidden_layers
        path = self.layers_path
        return [devices.compute_device(hf, f"{path}.{i}") for i in range(len(hf.get_submodule(path)))]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype in which it computes: that of its weights, beside quantised ones."""
        parameters = list(self.hf.parameters())
        return next((one.dtype for one in parameters if one.dtype in _COMPUTING), parameters[0].dtype)

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and continuation together: the config's, else the tokenizer's.

        Raises:
            ModelRefused: neither has a limit.
        """
        for field in _CONTEXT_FIELDS:
            value = getattr(self.text_config, field, None)
            if isinstance(value, int) and value > 0:
                return value
        longest = self.tokenizer.model_max_length
        if 0 < longest < _NO_LIMIT:
            return int(longest)
        raise ModelRefused(
            f"{self.name}: the config names no context length (looked for {', '.join(_CONTEXT_FIELDS)}), "
            "nor does the tokenizer; set model_max_length in tokenizer_config.json"
        )

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a generation: the generation config's and the tokenizer's."""
        generation = getattr(self.hf, "generation_config", None)
        found: dict[int, None] = {}
        for value in (getattr(generation, "eos_token_id", None), self.tokenizer.eos_token_id):
            ids = value if isinstance(value, list | tuple) else [value]
            found.update(dict.fromkeys(int(i) for i in ids if i is not None))
        return tuple(found)
