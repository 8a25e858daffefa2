"""Logit bias and penalties are OpenAI's formulas, of the request's own tokens, or vLLM's."""

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
        penalise(found, spec, torch.cat([torch.tensor([1, 1, 2]), tokens[:step]]), 3)
        counts = torch.bincount(tokens[:step], minlength=VOCAB).float()
        wanted = logits - 0.75 * (counts > 0) + 0.5 * counts
        wanted[3] += 2.5
        wanted[9] -= 100
        torch.testing.assert_close(found, wanted)


def test_a_repetition_penalty_counts_the_prompt_and_few_tokens_have_no_end() -> None:
    logits = torch.tensor([2.0, -2.0, 4.0, -1.0, 3.0])
    ids = torch.tensor([0, 1, 1, 2])
    found = logits.clone()
    penalise(found, SamplingSpec(repetition_penalty=2.0, min_tokens=1), ids, 3, ends=[4])
    assert found.tolist() == [1.0, -4.0, 2.0, -1.0, 3.0]
    penalise(found, SamplingSpec(min_tokens=2, stop_token_ids=[3]), ids, 3, ends=[4])
    assert found.tolist() == [1.0, -4.0, 2.0, -torch.inf, -torch.inf]
