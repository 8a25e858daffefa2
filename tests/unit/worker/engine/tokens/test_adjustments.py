"""Logit bias and penalties are OpenAI's formulas, of the request's own tokens, or vLLM's."""

from collections.abc import Sequence

import torch

from actograph.contract.specs import SamplingSpec
from worker.engine.tokens.adjustments import Adjustments

VOCAB = 11


def apply(
    adjustments: Adjustments, logits: torch.Tensor, slot: int, generated: Sequence[int]
) -> torch.Tensor:
    """The logits of one request's next token."""
    found = logits.clone()[None]
    newest = generated[-1] if generated else -1
    numbers = torch.tensor([[0], [slot], [len(generated)], [newest]])
    adjustments.apply(found, numbers, adjustments.most_listed(slot, len(generated)))
    return found[0]


def test_each_step_is_the_formula() -> None:
    torch.manual_seed(0)
    adjustments = Adjustments(torch.device("cpu"))
    spec = SamplingSpec(presence_penalty=0.75, frequency_penalty=-0.5, logit_bias={3: 2.5, 9: -100.0})
    slot = adjustments.open(spec, [1, 1, 2], 200, [])
    tokens = torch.randint(VOCAB, (200,)).tolist()
    for step in range(200):
        logits = torch.randn(VOCAB)
        counts = torch.bincount(torch.tensor(tokens[:step], dtype=torch.int64), minlength=VOCAB).float()
        wanted = logits - 0.75 * (counts > 0) + 0.5 * counts
        wanted[3] += 2.5
        wanted[9] -= 100
        for _ in range(2):  # a pass that is run again counts nothing twice
            torch.testing.assert_close(apply(adjustments, logits, slot, tokens[:step]), wanted)


def test_a_repetition_penalty_counts_the_prompt_and_few_tokens_have_no_end() -> None:
    logits = torch.tensor([2.0, -2.0, 4.0, -1.0, 3.0])
    adjustments = Adjustments(torch.device("cpu"))
    slot = adjustments.open(SamplingSpec(repetition_penalty=2.0, min_tokens=1), [0, 1, 1], 9, [4])
    assert apply(adjustments, logits, slot, []).tolist() == [1.0, -4.0, 4.0, -1.0, -torch.inf]
    assert apply(adjustments, logits, slot, [2]).tolist() == [1.0, -4.0, 2.0, -1.0, 3.0]
    adjustments.close(slot)
    again = adjustments.open(SamplingSpec(min_tokens=2), [0, 1, 1], 9, [4, 3])
    assert again == slot
    for generated in ([], [2]):
        found = apply(adjustments, logits, again, generated)
        assert found.tolist() == [2.0, -2.0, 4.0, -torch.inf, -torch.inf]
    assert apply(adjustments, logits, again, [2, 2]).tolist() == logits.tolist()
