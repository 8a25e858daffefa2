"""Choice of each running request's next token: the checkpoint's processors and grammars, then the sampler."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from worker.engine.model.host_memory import to_device
from worker.engine.model.loaded import LoadedModel
from worker.engine.slot import Slot
from worker.engine.tokens import checkpoint_processors
from worker.engine.tokens.grammar import Grammar, ruled_out
from worker.engine.tokens.sampler import Choice, RuledOut, SampledRow, Sampler


class TokenChoice:
    """Chooses tokens for requests at different steps. A pass that is run again chooses the same.

    Args:
        next_ids: of the forward.
    """

    def __init__(self, model: LoadedModel, next_ids: Tensor) -> None:
        self._model = model
        self._sampler = Sampler(model.device, int(model.text_config.vocab_size), next_ids)

    def open(self, slot: Slot) -> None:
        """Give a request its entry in the sampler, its grammar and the checkpoint's processors."""
        if slot.reads:
            return
        request, most = slot.request, slot.request.most_generated
        if request.grammar is not None:
            slot.grammar = Grammar(self._model, request.grammar)
        slot.processors = checkpoint_processors.of_one(self._model, slot.prompt, most)
        if slot.processors:
            slot.ids = torch.zeros(1, slot.most + 1, dtype=torch.int64, device=self._model.device)
            slot.ids[0, : slot.prompt] = to_device(np.array(request.prompt_ids), self._model.device)
        slot.sampler = self._sampler.open(
            request.sampling,
            seed=request.seed,
            prompt=request.prompt_ids,
            most=most,
            ends=self._model.eos_token_ids,
            top_logprobs=request.top_logprobs,
        )

    def close(self, slot: Slot) -> None:
        """Free a request's entry."""
        if slot.sampler is not None:
            self._sampler.close(slot.sampler)
            slot.sampler = None

    def set_newest(self, slots: Sequence[Slot]) -> None:
        """Put the tokens that the host has read where the next pass reads them."""
        known = [(slot.sampler, slot.generated[-1]) for slot in slots if slot.sampler and slot.generated]
        if known:
            entries, tokens = zip(*known, strict=True)
            self._sampler.set_newest(entries, tokens)

    def choose(self, logits: Tensor, slots: Sequence[Slot]) -> Choice:
        """Choose the next token of each slot.

        Args:
            logits: as the model computes them, [slots, vocabulary].
        """
        sampled = []
        for slot in slots:
            assert slot.sampler is not None
            newest = None if slot.is_unread else slot.generated[-1] if slot.generated else -1
            sampled.append(SampledRow(slot.sampler, slot.chosen, newest))
        guided = [(i, slot.grammar) for i, slot in enumerate(slots) if slot.grammar is not None]
        hidden = None
        if guided:
            masks = ruled_out([grammar for _, grammar in guided], logits.shape[-1], logits.device)
            hidden = RuledOut([i for i, _ in guided], masks)
        return self._sampler.choose(
            logits, sampled, processed=self._processed(logits, slots), ruled_out=hidden
        )

    def _processed(self, logits: Tensor, rows: Sequence[Slot]) -> Tensor | None:
        """Logits in float32 after the checkpoint's processors; None if no row has one."""
        if not any(row.processors for row in rows):
            return None
        scores = logits.to(torch.float32, copy=True)
        for i, row in enumerate(rows):
            for processor in row.processors:
                assert row.ids is not None
                scores[i : i + 1] = processor(row.ids[:, : len(row.tokens)], scores[i : i + 1])
        return scores
