"""Prompts of different lengths as one batch."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from worker.engine.model.loaded import LoadedModel
from worker.engine.requests import GenerationRequest


def left_padded(
    model: LoadedModel, requests: Sequence[GenerationRequest]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [batch, longest] and their mask (1 for a token, 0 for padding), on the host."""
    longest = max(len(request.prompt_ids) for request in requests)
    ids = torch.full((len(requests), longest), model.pad_token_id, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, request in enumerate(requests):
        start = longest - len(request.prompt_ids)
        ids[row, start:] = torch.tensor(request.prompt_ids)
        mask[row, start:] = 1
    return ids, mask


def padded_inputs(model: LoadedModel, requests: Sequence[GenerationRequest]) -> dict[str, Any]:
    """Left-padded ids, their mask and positions; no cache is kept."""
    ids, mask = left_padded(model, requests)
    device = model.device
    inputs: dict[str, Any] = {
        "input_ids": ids.to(device),
        "attention_mask": mask.to(device),
        "use_cache": False,
    }
    if "position_ids" in inspect.signature(model.hf.forward).parameters:
        inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0).to(device)
    return inputs
