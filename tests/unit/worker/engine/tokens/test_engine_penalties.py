"""Logit bias and penalties are OpenAI's formulas, of the request's own tokens."""

import torch

from actograph.contract.specs import SamplingSpec
from worker.engine.tokens.penalties import penalise

VOCAB = 11


def test_each_step_is_the_formula() -> None:
    torch.manual_seed(0)
    spec = SamplingSpec(presence_penalty=0.75, frequency_penalty=-0.5, logit_bias={3: 2.5, 9: -100.0})
    tokens = torch.randint(VOCAB, (12,))
    for step in range(13):
        logits = torch.randn(VOCAB)
        found = logits.clone()
        penalise(found, spec, tokens[:step])
        counts = torch.bincount(tokens[:step], minlength=VOCAB).float()
        wanted = logits - 0.75 * (counts > 0) + 0.5 * counts
        wanted[3] += 2.5
        wanted[9] -= 100
        torch.testing.assert_close(found, wanted)
