"""Logit bias and penalties are OpenAI's formulas, of each row's own tokens."""

from typing import Any

import torch

from actograph.contract.specs import SamplingSpec
from worker.engine.tokens.penalties import Penalties

CPU = torch.device("cpu")
PROMPT, VOCAB = 4, 11


def run(
    spec: SamplingSpec, prompts: torch.Tensor, tokens: torch.Tensor, logits: torch.Tensor
) -> torch.Tensor:
    """What each step's logits became, [steps + 1, batch, vocab], where the rows chose `tokens`."""
    penalties = Penalties(spec, PROMPT, CPU)
    found: list[torch.Tensor] = []
    for step in range(tokens.shape[1] + 1):
        ids: Any = torch.cat([prompts, tokens[:, :step]], 1)
        scores: Any = logits[step].clone()
        found.append(penalties(ids, scores))
    return torch.stack(found)


def test_each_step_is_the_formula_for_each_row_alone_and_together() -> None:
    torch.manual_seed(0)
    spec = SamplingSpec(presence_penalty=0.75, frequency_penalty=-0.5, logit_bias={3: 2.5, 9: -100.0})
    steps, batch = 12, 3
    prompts, tokens = torch.randint(VOCAB, (batch, PROMPT)), torch.randint(VOCAB, (batch, steps))
    logits = torch.randn(steps + 1, batch, VOCAB)
    found = run(spec, prompts, tokens, logits)
    for row in range(batch):
        alone = slice(row, row + 1)
        assert torch.equal(run(spec, prompts[alone], tokens[alone], logits[:, alone])[:, 0], found[:, row])
        for step in range(steps + 1):
            counts = torch.bincount(tokens[row, :step], minlength=VOCAB).float()
            wanted = logits[step, row] - 0.75 * (counts > 0) + 0.5 * counts
            wanted[3] += 2.5
            wanted[9] -= 100
            torch.testing.assert_close(found[step, row], wanted)
