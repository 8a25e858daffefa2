"""Choice of each running request's next token: the checkpoint's processors and grammars, then the sampler."""

from collections.abc import Sequence

import torch
from torch import Tensor

from worker.engine.model.loaded import LoadedModel
from worker.engine.stream.live import Live
from worker.engine.tokens import checkpoint_processors
from worker.engine.tokens.grammar import Grammar, ruled_out
from worker.engine.tokens.sampler import ChosenToken, RuledOut, SampledRow, Sampler


class TokenChoice:
    """Chooses tokens for requests at different steps. A pass that is run again chooses the same."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._sampler = Sampler(model.device, int(model.text_config.vocab_size))

    def open(self, live: Live) -> None:
        """Give a request its slot of the sampler, its grammar and the checkpoint's processors."""
        if live.reads:
            return
        item = live.item
        if item.request.grammar is not None:
            live.grammar = Grammar(self._model, item.request.grammar)
        live.processors = checkpoint_processors.of_one(self._model, live.prompt, item.max_tokens)
        if live.processors:
            live.hold_ids(self._model.device)
        live.slot = self._sampler.open(
            item.sampling,
            seed=item.request.seed,
            prompt=item.prompt,
            most=item.max_tokens,
            ends=self._model.eos_token_ids,
            top_logprobs=item.request.top_logprobs,
        )

    def close(self, live: Live) -> None:
        """Free a request's slot."""
        if live.slot is not None:
            self._sampler.close(live.slot)
            live.slot = None

    def choose(self, logits: Tensor, rows: Sequence[Live]) -> list[ChosenToken]:
        """The next token of each row.

        Args:
            logits: as the model computes them, [rows, vocabulary].
        """
        sampled = []
        for row in rows:
            assert row.slot is not None
            newest = row.generated[-1] if row.generated else -1
            sampled.append(SampledRow(row.slot, len(row.generated), newest))
        guided = [(i, row.grammar) for i, row in enumerate(rows) if row.grammar is not None]
        hidden = None
        if guided:
            masks = ruled_out([grammar for _, grammar in guided], logits.shape[-1], logits.device)
            hidden = RuledOut([i for i, _ in guided], masks)
        return self._sampler.choose(
            logits, sampled, processed=self._processed(logits, rows), ruled_out=hidden
        )

    def _processed(self, logits: Tensor, rows: Sequence[Live]) -> Tensor | None:
        """Logits in float32 after the checkpoint's processors; None if no row has one."""
        if not any(row.processors for row in rows):
            return None
        scores = logits.to(torch.float32, copy=True)
        for i, row in enumerate(rows):
            for processor in row.processors:
                assert row.ids is not None
                scores[i : i + 1] = processor(row.ids[:, : len(row.tokens)], scores[i : i + 1])
        return scores
