"""Logit bias, and penalties of tokens that a sample has generated already.

OpenAI's formulas (platform.openai.com/docs/guides/text-generation, "Frequency and presence penalties"):
logit[t] + bias[t] - count[t] * frequency_penalty - (count[t] > 0) * presence_penalty, where count[t] is
how often the sample has generated token t. The prompt's tokens do not count.
"""

import torch
from transformers import LogitsProcessor

from actograph.contract.specs import SamplingSpec


class Penalties(LogitsProcessor):
    """Applies bias and penalties, between the recorder of log probabilities and the sampler.

    A row counts its own tokens only, so its numbers do not depend on its batch. No state is as wide as the
    vocabulary.

    Args:
        prompt_length: padded length of the prompts; generated tokens follow.
        device: device of the logits.
    """

    def __init__(self, spec: SamplingSpec, prompt_length: int, device: torch.device) -> None:
        self._presence = spec.presence_penalty
        self._frequency = spec.frequency_penalty
        self._prompt_length = prompt_length
        self._biased = torch.tensor(list(spec.logit_bias), dtype=torch.long, device=device)
        self._bias = torch.tensor(list(spec.logit_bias.values()), dtype=torch.float32, device=device)
        #: [batch, generated tokens]: how often each of them was generated
        self._counts: torch.Tensor | None = None

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        # float32 and transformers' own copy: it may be written to
        changed: torch.Tensor = scores
        if len(self._biased):
            changed[:, self._biased] += self._bias
        generated = input_ids[:, self._prompt_length :]
        if (self._presence or self._frequency) and generated.shape[1]:
            counts = self._count(generated)
            penalty = self._presence + self._frequency * counts
            changed.scatter_(1, generated, changed.gather(1, generated) - penalty)
        return changed  # type: ignore[return-value]

    def _count(self, generated: torch.Tensor) -> torch.Tensor:
        newest = generated[:, -1:]
        same = generated == newest
        times = same.sum(1, keepdim=True).to(torch.float32)
        known = times if self._counts is None else torch.cat([self._counts, times], 1)
        self._counts = torch.where(same, times, known)
        return self._counts


def changes_logits(spec: SamplingSpec) -> bool:
    """Whether `Penalties` changes any logit."""
    return bool(spec.presence_penalty or spec.frequency_penalty or spec.logit_bias)
