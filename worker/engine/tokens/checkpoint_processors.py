"""Logits processors of a checkpoint's generation config, made independent of padding.

transformers passes padded ids to every processor. Then a repetition penalty applies to the padding token,
n-grams begin in the padding, and a minimum length counts the padding. A sample's tokens would depend on the
rest of its batch.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    LogitsProcessor,
    MinLengthLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from worker.engine.model.loaded import LoadedModel

#: options of `generate` that switch off transformers' own processors
LEFT_TO_US: dict[str, Any] = {"repetition_penalty": None, "no_repeat_ngram_size": None, "min_length": None}


def processors_of(model: LoadedModel, lengths: Sequence[int]) -> list[LogitsProcessor]:
    """Processors in the generation config, in transformers' order.

    Args:
        lengths: of the prompts, without padding.
    """
    config: Any = model.hf.generation_config
    found: list[LogitsProcessor] = []
    if config.repetition_penalty is not None and config.repetition_penalty != 1.0:
        found.append(PenaltyWithoutPadding(config.repetition_penalty, lengths))
    rows: list[LogitsProcessor] = []
    if config.no_repeat_ngram_size:
        rows.append(NoRepeatNGramLogitsProcessor(config.no_repeat_ngram_size))
    if config.min_length and model.eos_token_ids:
        eos = list(model.eos_token_ids)
        rows.append(MinLengthLogitsProcessor(config.min_length, eos, device=str(model.device)))
    if rows:
        found.append(RowByRow(rows, lengths))
    return found


def of_one(model: LoadedModel, prompt_tokens: int, max_tokens: int) -> list[LogitsProcessor]:
    """transformers' own processors for one row without padding; usually none.

    Sampling and stopping are left to us.
    """
    hf: Any = model.hf
    config = copy.deepcopy(hf.generation_config)
    config.update(do_sample=False, max_length=prompt_tokens + max_tokens)
    hf._prepare_special_tokens(config, kwargs_has_attention_mask=True, device=model.device)
    return list(
        hf._get_logits_processor(
            config, input_ids_seq_length=prompt_tokens, device=str(model.device), model_kwargs={}
        )
    )


class PenaltyWithoutPadding(LogitsProcessor):
    """A repetition penalty (Keskar et al. 2019) over each row's tokens without padding."""

    def __init__(self, penalty: float, lengths: Sequence[int]) -> None:
        self._penalised = RepetitionPenaltyLogitsProcessor(penalty)
        self._longest = max(lengths)
        self._starts = torch.tensor([[self._longest - n] for n in lengths])

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        starts = self._starts = self._starts.to(input_ids.device)
        # a repeated token is penalised once, so padding may become the row's first token
        places = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        shown: Any = input_ids.gather(1, places.maximum(starts))
        punished: torch.FloatTensor = self._penalised(shown, scores)
        return punished


class RowByRow(LogitsProcessor):
    """Shows other processors one row at a time, without its padding."""

    def __init__(self, processors: Sequence[LogitsProcessor], lengths: Sequence[int]) -> None:
        self._processors = tuple(processors)
        longest = max(lengths)
        self._starts = [longest - n for n in lengths]

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        rows = []
        for row, start in enumerate(self._starts):
            ids: Any = input_ids[row : row + 1, start:]
            own: Any = scores[row : row + 1]
            for processor in self._processors:
                own = processor(ids, own)
            rows.append(own)
        return torch.cat(rows)  # type: ignore[return-value]
