"""Log probabilities of a prompt's own tokens, from the forward pass that reads the prompt.

The logits of a whole prompt are large: 2.4 GB for 4,000 tokens and a vocabulary of 150,000. So the head runs
on the last token alone, as in any generation. The logits of the other tokens are computed a few tokens at a
time, and only each token's own log probability and the likeliest ones are kept.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from actograph.contract.errors import ActographError, CaptureFailed, InterventionFailed
from actograph.plans import SCORED_PIECE_BYTES, scored_token_bytes
from worker.engine.edits.interventions import Editor
from worker.engine.locations import ModelHooks, place_of
from worker.engine.model.handoffs import run_unseen
from worker.engine.requests import Generation, GenerationRequest, TokenLogprobs
from worker.engine.tokens.model_inputs import left_padded

#: of a prompt's tokens; the first has none
PromptLogprobs = tuple[TokenLogprobs | None, ...]


class PromptScores:
    """Scores the prompts of one batch that ask for it.

    If the model changes the head's output before it returns the logits (a soft cap, a scale), its own forward
    computes them here too: on one token, with the head's answers in place.

    Args:
        editor: the batch's edits; edits at the head apply to every token of a prompt.
    """

    def __init__(
        self, hooks: ModelHooks, requests: Sequence[GenerationRequest], *, editor: Editor | None = None
    ) -> None:
        self._model = hooks.model
        self._head = hooks.head
        self._head_is_logits = hooks.head_is_logits
        self._path = place_of(hooks.head).path
        self._requests = requests
        self._asked = [row for row, request in enumerate(requests) if request.score_prompt]
        # an editor counts rows by their place in the batch
        self._rows = self._asked if editor is None else list(range(len(requests)))
        self._most = max(requests[row].top_logprobs or 0 for row in self._asked)
        self._editor = editor
        self._ids, _ = left_padded(hooks.model, requests)  # [batch, longest]
        # log probabilities of the tokens after the first. They are allocated before any logits, so that the
        # heap can use a piece's memory again
        self._own: torch.Tensor | None = None  # [rows, tokens]
        self._top_ids = torch.empty(0, dtype=torch.long)  # [rows, tokens, most], and their values
        self._top = torch.empty(0)
        self._later: torch.Tensor | None = None

    def inputs(self) -> dict[str, Any]:
        """Options of the model's forward that give the head every token."""
        known = inspect.signature(type(self._model.hf).forward).parameters
        return {"logits_to_keep": 0} if "logits_to_keep" in known else {}

    @contextmanager
    def on(self) -> Iterator[None]:
        """Score the prompts that the enclosed forward pass or generation reads."""
        self._own = self._later = None
        head = self._model.hf.get_submodule(self._path)
        handle = head.register_forward_pre_hook(self._take)
        try:
            yield
        finally:
            handle.remove()
        if self._later is not None:
            hidden, self._later = self._later, None
            self._score(hidden, self._through_the_model)

    def of(self, row: int) -> PromptLogprobs | None:
        """Log probabilities of a row's prompt; None if not requested, or if the run ended early.

        Raises:
            CaptureFailed, InterventionFailed: the model's probabilities are NaN.
        """
        request = self._requests[row]
        if not request.score_prompt or self._own is None:
            return None
        place, count = self._rows.index(row), len(request.prompt_ids) - 1
        if not count:
            return (None,)
        own = self._own[place, -count:]
        if own.isnan().any():
            what = "the model's probabilities of the prompt's tokens are not numbers (NaN)"
            if request.edits:
                raise InterventionFailed(f"{what}; take a smaller coefficient or vector")
            raise CaptureFailed(what)
        top_ids, top = (found[place, -count:].tolist() for found in (self._top_ids, self._top))
        most = request.top_logprobs or 0
        found = [
            TokenLogprobs(token, logprob, tuple(zip(ids[:most], values[:most], strict=True)))
            for token, logprob, ids, values in zip(
                request.prompt_ids[1:], own.tolist(), top_ids, top, strict=True
            )
        ]
        return (None, *found)

    def _take(self, head: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Score the head's input; the head itself then runs on the last token alone."""
        hidden = args[0] if args else None
        padded = self._ids.shape[1]
        if not isinstance(hidden, torch.Tensor) or hidden.ndim != 3:
            raise CaptureFailed(f"{self._head}: the head's input has no row for each token of each text")
        if self._own is not None or self._later is not None:
            return None  # a decode step
        if tuple(hidden.shape[:2]) != tuple(self._ids.shape):
            raise CaptureFailed(
                f"{self._head}: the head was given a tensor of shape {tuple(hidden.shape)} for "
                f"{len(self._ids)} prompts of {padded} tokens"
            )
        if self._head_is_logits:
            self._score(hidden, lambda piece, start: self._answer(head, piece, start))
        else:
            self._later = hidden
        return (hidden[:, -1:], *args[1:])

    def _score(self, hidden: torch.Tensor, logits_of: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
        """Take the prompts' probabilities from the hidden states, [batch, longest, width]."""
        padded = hidden.shape[1]
        start = padded - max(len(self._requests[row].prompt_ids) for row in self._asked)
        rows = None if len(self._rows) == len(hidden) else torch.tensor(self._rows, device=hidden.device)
        ids = self._ids[self._rows]
        size = max(1, SCORED_PIECE_BYTES // (len(self._rows) * scored_token_bytes(self._vocabulary)))
        most = min(self._most, self._vocabulary)
        self._own = own = torch.empty(len(self._rows), padded - 1)
        self._top_ids = torch.empty(len(self._rows), padded - 1, most, dtype=torch.long)
        self._top = torch.empty(len(self._rows), padded - 1, most)
        while start < padded - 1:
            piece = hidden[:, start : min(start + size, padded - 1)]
            piece = piece if rows is None else piece.index_select(0, rows)
            logits = logits_of(piece, start).to(torch.float32)
            stop = start + piece.shape[1]
            targets = ids[:, start + 1 : stop + 1].to(logits.device)
            total = logits.logsumexp(-1, keepdim=True)
            top, top_ids = logits.topk(most, dim=-1)
            own[:, start:stop] = (logits.gather(-1, targets[..., None]) - total)[..., 0]
            self._top_ids[:, start:stop] = top_ids
            self._top[:, start:stop] = top - total
            del logits
            start = stop

    @property
    def _vocabulary(self) -> int:
        return int(self._model.text_config.vocab_size)

    def _answer(self, head: torch.nn.Module, piece: torch.Tensor, start: int) -> torch.Tensor:
        """The head's output for tokens [start, ...) of the padded prompts, edits included."""
        padded = self._ids.shape[1]
        if self._editor is not None:
            piece = piece.clone()  # the trace edits the last token itself
            self._editor.edit_piece(f"{self._path}.input", piece, start=start, padded=padded)
        output = run_unseen(head, piece)
        if not isinstance(output, torch.Tensor):
            raise CaptureFailed(f"{self._head}: the head gave a {type(output).__name__}, not a tensor")
        if self._editor is not None:
            self._editor.edit_piece(self._head, output, start=start, padded=padded)
        return output

    def _through_the_model(self, piece: torch.Tensor, start: int) -> torch.Tensor:
        """Logits as the model's forward returns them."""
        head = self._model.hf.get_submodule(self._path)
        token = self._ids[self._rows, -1:].to(self._model.device)
        handle = head.register_forward_hook(lambda *_: self._answer(head, piece, start))
        try:
            with torch.inference_mode():
                logits = self._model.hf(input_ids=token, use_cache=False).logits
        finally:
            handle.remove()
        assert isinstance(logits, torch.Tensor)
        return logits


def with_scores(made: Generation, scores: PromptScores, row: int) -> Generation:
    """The generation with its prompt's log probabilities, or with the error that prevented them."""
    try:
        return replace(made, prompt_logprobs=scores.of(row))
    except ActographError as error:
        return replace(made, error=made.error or error)
