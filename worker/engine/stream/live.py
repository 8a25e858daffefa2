"""A running request, why it ends, and the forward that runs it."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from actograph.contract.specs import SamplingSpec
from worker.engine.capture.budget import Budget
from worker.engine.capture.parts import Context, Part
from worker.engine.capture.taps import Taps
from worker.engine.locations import ModelHooks
from worker.engine.messages import FinishReason, Generation, TextEnd, TokenLogprobs
from worker.engine.model.host_memory import to_device
from worker.engine.packed.prefixes import Beginning
from worker.engine.runs import RunRequest
from worker.engine.stream.edits import RowEdits
from worker.engine.stream.scores import PromptScore
from worker.engine.tokens.grammar import Grammar
from worker.engine.tokens.sampler import Slot
from worker.engine.tokens.stopping import StopStrings, TextEnds

#: kinds of stops remembered
_MOST_STOPS = 256


class Live(Context):
    """A request with a place in the forward.

    Attributes:
        generated: ids, the one that ended it included.
        cached: first tokens of the prompt that another request had computed.
        slot: its place in the sampler's tables; None before its start and after its end.
        ids: all ids on the device, [1, most + 1]; only for `processors`.
        processors: transformers' own, of the checkpoint's generation config.
        grammar: where the generated text is in the grammar that it follows.
        begins: it computes a common beginning and has no result of its own.
    """

    def __init__(
        self, item: RunRequest, hooks: ModelHooks, now: float, *, begins: Beginning | None = None
    ) -> None:
        super().__init__(list(item.prompt), item.most, priority=item.priority)
        self.item, self.started, self.begins = item, now, begins
        self.generated: list[int] = []
        self.cached = 0
        self.edits = RowEdits(item.request, hooks, self.generated)
        self.score = PromptScore(item.request) if item.request.score_prompt else None
        self.logprobs: list[TokenLogprobs] = []
        self.slot: Slot | None = None
        self.ids: Tensor | None = None
        self.processors: list[Any] = []
        self.grammar: Grammar | None = None

    @property
    def key(self) -> str:
        return self.item.key

    @property
    def prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.item.prompt)

    @property
    def sampling(self) -> SamplingSpec:
        return self.item.sampling

    @property
    def reads(self) -> bool:
        """Whether the prompt is only read."""
        return not self.item.max_tokens

    @property
    def prefills(self) -> bool:
        return self.computed < self.prompt

    @property
    def needs_all_logits(self) -> bool:
        """Whether the logits of all tokens of the prompt are needed."""
        tail = self.record is not None and self.record.has_tail and self.reads
        return self.begins is None and (self.score is not None or tail)

    def logits_of(self, start: int, stop: int) -> int:
        """Number of last tokens among `start` to `stop - 1` whose logits are computed."""
        if start < self.prompt and self.needs_all_logits:
            return stop - start
        return int(self.chooses(stop))

    def chooses(self, stop: int) -> bool:
        """Whether a token is chosen after token `stop - 1`."""
        return stop >= self.prompt and not self.reads

    def take(self, token: int, logprobs: TokenLogprobs | None) -> None:
        """Add a chosen token."""
        if self.ids is not None:
            self.ids[0, len(self.tokens)].fill_(token)
        if self.grammar is not None:
            self.grammar.take(token)
        self.tokens.append(token)
        self.generated.append(token)
        if logprobs is not None:
            self.logprobs.append(logprobs)

    def hold_ids(self, device: torch.device) -> None:
        """Keep all ids on the device too: a new token then costs one write."""
        self.ids = torch.zeros(1, self.most + 1, dtype=torch.int64, device=device)
        self.ids[0, : self.prompt] = to_device(np.array(self.item.prompt), device)

    def generation(self, reason: FinishReason, error: BaseException | None = None) -> Generation:
        """The result; one with the reason "error" has no ids."""
        scores, failed = self.score.result() if self.score is not None else (None, None)
        request = self.item.request
        done = reason != "error"
        return Generation(
            key=self.key,
            prompt_ids=self.item.prompt,
            generated_ids=tuple(self.generated) if done else (),
            finish_reason=reason,
            cached_tokens=self.cached,
            error=error or failed,
            logprobs=tuple(self.logprobs) if done and request.top_logprobs is not None else None,
            prompt_logprobs=scores,
        )


def unread(item: RunRequest, reason: FinishReason, error: BaseException | None = None) -> Generation:
    """Result of a request that never had a place."""
    return Generation(
        key=item.key, prompt_ids=item.prompt, generated_ids=(), finish_reason=reason, error=error
    )


class Forward(Protocol):
    """A model with the keys and values of live requests: packed or traced.

    Attributes:
        together: a pass takes several requests.
        forks: a request can take over another one's first tokens.
        chunks: a prompt may be read in several passes.
        budget: of the device's memory.
    """

    together: bool
    forks: bool
    chunks: bool
    hooks: ModelHooks
    budget: Budget

    def refusal(self, context: Context) -> str | None:
        """Why a request can never run; None if it can."""
        ...

    def place(self, context: Context) -> bool:
        """Give a request its place; False if it must wait."""
        ...

    def fork(self, source: Context, context: Context, tokens: int) -> None:
        """Take over the first tokens of another request."""
        ...

    def leave(self, context: Context) -> None:
        """Free a request's place."""
        ...

    def restart(self, context: Context) -> int:
        """Forget what a failed pass has left of a request.

        Returns: the number of its first tokens that are still computed; the others must run again.
        """
        ...

    def run(self, parts: Sequence[Part], taps: Taps) -> Tensor:
        """Begin a pass of the taps, and run it.

        Returns: logits of the last `part.logits` tokens of each part, [tokens, vocabulary]; they are good
            until the next pass.
        """
        ...

    def close(self) -> None:
        """Remove all hooks from the model."""
        ...


class Endings:
    """Decides after each token whether a request has ended.

    Args:
        clock: seconds.
    """

    def __init__(
        self, eos_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase, clock: Callable[[], float]
    ) -> None:
        self._eos = frozenset(eos_ids)
        self._tokenizer = tokenizer
        self._clock = clock
        self._stops: dict[tuple[str, ...], StopStrings] = {}
        self._ends: dict[TextEnd, TextEnds] = {}

    def reason(self, live: Live) -> FinishReason | None:
        """Why a request ended with its newest token; None if it goes on."""
        newest, sampling = live.generated[-1], live.sampling
        if (newest in self._eos and not sampling.ignore_eos) or newest in sampling.stop_token_ids:
            return "stop"
        if self._says_stop(live):
            return "stop"
        if live.grammar is not None and live.grammar.ended:
            return "stop"
        if len(live.generated) >= live.item.max_tokens:
            return "length"
        limit = math.inf if live.item.time_limit is None else live.item.time_limit
        return "timeout" if self._clock() - live.started > limit else None

    def _says_stop(self, live: Live) -> bool:
        stops = tuple(live.sampling.stop)
        if stops:
            if stops not in self._stops:
                _limit(self._stops)
                self._stops[stops] = StopStrings(stops, self._tokenizer)
            if self._stops[stops].ended(live.generated):
                return True
        end = live.item.request.stop_at
        if end is None:
            return False
        if end not in self._ends:
            _limit(self._ends)
            self._ends[end] = TextEnds(end, self._tokenizer)
        return self._ends[end].ended(live.generated)


def _limit(known: dict[Any, Any]) -> None:
    """Forget all if they are many: a run may never end."""
    if len(known) >= _MOST_STOPS:
        known.clear()
