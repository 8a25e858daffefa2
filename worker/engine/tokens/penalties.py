"""Logit bias, penalties of tokens that a request has already, and the least number of tokens.

OpenAI's formulas (platform.openai.com/docs/guides/text-generation, "Frequency and presence penalties"):
logit[t] + bias[t] - count[t] * frequency_penalty - (count[t] > 0) * presence_penalty, where count[t] is
how often the request has generated token t. The prompt's tokens do not count. For the repetition penalty
they do; its formula is that of Keskar et al. 2019 (arXiv 1909.05858), as in transformers and vLLM.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from actograph.contract.specs import SamplingSpec


def penalise(
    scores: Tensor, spec: SamplingSpec, ids: Tensor | None, prompt: int, ends: Sequence[int] = ()
) -> None:
    """Apply bias and penalties in place.

    Args:
        scores: float32 logits of one request, [vocabulary].
        ids: of its prompt and of what it generated, int64 [tokens]; None if `spec` needs none.
        prompt: number of tokens of the prompt.
        ends: ids that end a generation.
    """
    if spec.logit_bias:
        biased = torch.tensor(list(spec.logit_bias), device=scores.device)
        added = torch.tensor(list(spec.logit_bias.values()), dtype=torch.float32, device=scores.device)
        scores[biased] += added
    if ids is None:
        return
    if spec.repetition_penalty != 1.0:
        own = scores[ids]
        scores[ids] = torch.where(own > 0, own / spec.repetition_penalty, own * spec.repetition_penalty)
    if len(ids) > prompt:
        found, times = ids[prompt:].unique(return_counts=True)  # type: ignore[no-untyped-call]
        scores[found] -= spec.presence_penalty + spec.frequency_penalty * times.to(torch.float32)
    if len(ids) < prompt + spec.min_tokens:
        scores[[*ends, *spec.stop_token_ids]] = -torch.inf


def has_penalty(spec: SamplingSpec) -> bool:
    """Whether the ids generated so far matter."""
    repeats = spec.repetition_penalty != 1.0
    return bool(spec.presence_penalty or spec.frequency_penalty or repeats or spec.min_tokens)


def changes_logits(spec: SamplingSpec) -> bool:
    """Whether `penalise` changes any logit."""
    return has_penalty(spec) or bool(spec.logit_bias)
