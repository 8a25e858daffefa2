"""Prompts of different lengths as one batch."""

from collections.abc import Sequence

import torch

from worker.engine.model import LoadedModel
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
