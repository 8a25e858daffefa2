"""Logit bias, and penalties of tokens that a request has generated already.

OpenAI's formulas (platform.openai.com/docs/guides/text-generation, "Frequency and presence penalties"):
logit[t] + bias[t] - count[t] * frequency_penalty - (count[t] > 0) * presence_penalty, where count[t] is
how often the request has generated token t. The prompt's tokens do not count.
"""

import torch
from torch import Tensor

from actograph.contract.specs import SamplingSpec


def penalise(scores: Tensor, spec: SamplingSpec, generated: Tensor | None) -> None:
    """Apply bias and penalties in place.

    Args:
        scores: float32 logits of one request, [vocabulary].
        generated: its generated ids, int64 [tokens]; None if `spec` has no penalty.
    """
    if spec.logit_bias:
        biased = torch.tensor(list(spec.logit_bias), device=scores.device)
        added = torch.tensor(list(spec.logit_bias.values()), dtype=torch.float32, device=scores.device)
        scores[biased] += added
    if generated is not None and len(generated):
        ids, times = generated.unique(return_counts=True)  # type: ignore[no-untyped-call]
        scores[ids] -= spec.presence_penalty + spec.frequency_penalty * times.to(torch.float32)


def has_penalty(spec: SamplingSpec) -> bool:
    """Whether the ids generated so far matter."""
    return bool(spec.presence_penalty or spec.frequency_penalty)


def changes_logits(spec: SamplingSpec) -> bool:
    """Whether `penalise` changes any logit."""
    return has_penalty(spec) or bool(spec.logit_bias)
