"""SAELens on stored sessions, in its own environment, with our client to read them.

program.py train HOOK OUT SESSION...    trains an SAE of each kind on the rows of a hook, and saves it
program.py encode HOOK OUT SESSION...   encodes rows with the saved SAEs, into NAME.npy beside each
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sae_lens import (
    SAE,
    BatchTopKTrainingSAE,
    BatchTopKTrainingSAEConfig,
    GatedTrainingSAE,
    GatedTrainingSAEConfig,
    JumpReLUTrainingSAE,
    JumpReLUTrainingSAEConfig,
    StandardTrainingSAE,
    StandardTrainingSAEConfig,
    TopKTrainingSAE,
    TopKTrainingSAEConfig,
)
from sae_lens.config import SAETrainerConfig
from sae_lens.training.sae_trainer import SAETrainer
from torch.utils.data import DataLoader

from actograph.client import open_folder, to_torch_dataset

D_SAE, BATCH, STEPS = 192, 32, 60
#: name -> class, its config, and options beside the sizes
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "standard": (StandardTrainingSAE, StandardTrainingSAEConfig, {"l1_coefficient": 0.01}),
    "layer-norm": (StandardTrainingSAE, StandardTrainingSAEConfig, {"normalize_activations": "layer_norm"}),
    "rescaled": (
        StandardTrainingSAE,
        StandardTrainingSAEConfig,
        {"normalize_activations": "constant_norm_rescale", "apply_b_dec_to_input": False},
    ),
    "topk": (TopKTrainingSAE, TopKTrainingSAEConfig, {"k": 9}),
    "topk-unscaled": (
        TopKTrainingSAE,
        TopKTrainingSAEConfig,
        {"k": 9, "rescale_acts_by_decoder_norm": False},
    ),
    "batchtopk": (BatchTopKTrainingSAE, BatchTopKTrainingSAEConfig, {"k": 9}),
    "jumprelu": (JumpReLUTrainingSAE, JumpReLUTrainingSAEConfig, {}),
    "gated": (GatedTrainingSAE, GatedTrainingSAEConfig, {"l1_coefficient": 0.01}),
}


def batches(dataset: Any) -> Iterator[torch.Tensor]:
    while True:
        yield from DataLoader(dataset, batch_size=BATCH, drop_last=True)


def train(hook: str, out: Path, sessions: Sequence[Any]) -> None:
    dataset = to_torch_dataset(sessions, hook, seed=1)
    width = next(iter(dataset)).shape[0]
    for name, (kind, config, options) in KINDS.items():
        torch.manual_seed(0)
        sae = kind(config(d_in=width, d_sae=D_SAE, **options))
        sae.cfg.metadata.hook_name = hook
        asked = SAETrainerConfig(
            total_training_samples=BATCH * STEPS, train_batch_size_samples=BATCH, lr=1e-3, lr_end=1e-4
        )
        SAETrainer(asked, sae, batches(dataset)).fit()
        sae.save_inference_model(out / name)


def encode(hook: str, out: Path, sessions: Sequence[Any]) -> None:
    rows = np.concatenate([session[hook][:] for session in sessions])
    for folder in sorted(path.parent for path in out.glob("*/cfg.json")):
        sae = SAE.load_from_disk(folder)
        with torch.no_grad():
            np.save(f"{folder}.npy", sae.encode(torch.from_numpy(rows)).numpy())


if __name__ == "__main__":
    act, hook, out, *folders = sys.argv[1:]
    {"train": train, "encode": encode}[act](hook, Path(out), [open_folder(folder) for folder in folders])
