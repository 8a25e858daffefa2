"""The demo model's tokenizer: byte-level BPE with single digits and Qwen3's special tokens."""

from collections.abc import Iterable
from typing import Any

VOCABULARY = 512
END_OF_TURN = "<|im_end|>"
PADDING = "<|endoftext|>"
CONTROL_TOKENS = (PADDING, "<|im_start|>", END_OF_TURN)
# One token each, but text to the reader: they survive skip_special_tokens.
MARKUP_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


def train_tokenizer(texts: Iterable[str], chat_template: str, context_length: int) -> Any:
    """Train a `PreTrainedTokenizerFast` on `texts`."""
    import tokenizers
    import transformers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    added = [tokenizers.AddedToken(text, special=True, normalized=False) for text in CONTROL_TOKENS]
    added += [tokenizers.AddedToken(text, special=False, normalized=False) for text in MARKUP_TOKENS]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(added),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    backend.add_tokens(added)
    tokenizer: Any = transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        eos_token=END_OF_TURN,
        pad_token=PADDING,
        padding_side="left",
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = chat_template
    return tokenizer
