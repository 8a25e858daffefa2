"""Special tokens: those that no shown text has."""

from transformers import PreTrainedTokenizerBase


def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids of a tokenizer's special tokens, as its `decode(skip_special_tokens=True)` leaves them out.

    They are the added tokens with the flag `special`, in `tokenizer.json` or elsewhere, and those with a role
    (`eos_token`). A config names a part of them.
    """
    flagged = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(flagged.union(tokenizer.all_special_ids))
