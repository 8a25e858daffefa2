"""Log probabilities of generated tokens, for requests that ask for them."""

from collections.abc import Sequence

from torch import Tensor

from worker.engine.messages import TokenLogprobs


def logprobs_of(table: Tensor, tokens: Sequence[int], tops: Sequence[int]) -> list[TokenLogprobs]:
    """Log probability of each row's token, and the likeliest tokens.

    Args:
        table: log probabilities, [rows, vocabulary].
        tokens: the chosen token of each row.
        tops: number of likeliest tokens of each row.
    """
    values, ids = table.topk(max(tops), dim=-1)
    own = table[range(len(tokens)), list(tokens)].tolist()
    rows = zip(tokens, own, ids.tolist(), values.tolist(), tops, strict=True)
    return [
        TokenLogprobs(token, logprob, tuple(zip(likeliest[:top], logprobs[:top], strict=True)))
        for token, logprob, likeliest, logprobs, top in rows
    ]
