"""Random LoRA adapters of a small base, saved and computed by peft."""

from pathlib import Path
from typing import Any

import peft
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, Qwen3Config

from actograph.demo import MODEL_DIR
from tests.support.architectures import COMMON
from tests.support.checkpoints import save_random

VOCABULARY = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json")).get_vocab_size()
PROJECTIONS = ["q_proj", "v_proj", "down_proj"]


def saved_base(folder: Path) -> Path:
    """A base with random weights."""
    save_random(Qwen3Config(**{**COMMON, "vocab_size": VOCABULARY, "head_dim": 8}), folder)
    return folder


def adapted(base: Path, folder: Path, seed: int = 1, **config: Any) -> Any:
    """Save a random adapter of a base, and return peft's model with it, unmerged."""
    torch.manual_seed(seed)
    automatic: Any = AutoModelForCausalLM
    options = {"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM", "init_lora_weights": False, **config}
    model: Any = peft.get_peft_model(automatic.from_pretrained(base), peft.LoraConfig(**options))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "modules_to_save" in name or "trainable_tokens_delta" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.eval().save_pretrained(folder)
    return model
