"""Outcomes of samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from actograph.contract.errors import ActographError
from actograph.contract.resources import Score, ToolMessage, ToolUse
from storage.queue.leases import LeasedSample
from storage.sessions.sessions import NewSession
from worker.engine.messages import Generation
from worker.runners.runner import Prompt
from worker.sample.conversation import Conversation
from worker.sample.provenance import Provenance
from worker.sample.recorder import Recorded


class Interrupted(ActographError):
    """The run was ended before this sample; the sample is given back and runs again."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one sample; `error` is None if it completed."""

    lease: LeasedSample
    #: of its session; None if nothing is captured
    provenance: Provenance | None = None
    prompt: Prompt | None = None
    #: the last turn
    generation: Generation | None = None
    #: all turns
    conversation: Conversation | None = None
    tools: tuple[ToolUse, Sequence[ToolMessage]] | None = None
    completion: str = ""
    scores: Mapping[str, Score] | None = None
    #: None unless requested
    logprobs: Sequence[Mapping[str, Any]] | None = None
    #: None if nothing is captured
    recorded: Recorded | None = None
    #: the session of a sample that stores files of results, as a pair does
    results: NewSession | None = None
    #: tokens of all its requests, and those that were computed for several, if it has no conversation
    tokens_read: int = 0
    tokens_cached: int = 0
    error: ActographError | None = None

    @property
    def correct(self) -> bool | None:
        """Verdict of the first scorer, or of the stored sample that was read again."""
        if self.prompt is not None and self.prompt.replayed is not None:
            return self.prompt.replayed.correct
        first = next(iter((self.scores or {}).values()), None)
        return None if first is None else first.value == 1.0

    @property
    def session_id(self) -> str | None:
        """Id of the stored session."""
        return self.recorded.session_id if self.recorded else self.results.id if self.results else None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the first prompt, or of all requests of a pair."""
        return self.conversation.prompt_tokens if self.conversation else self.tokens_read

    @property
    def generated_tokens(self) -> int:
        """Tokens that the model chose, in all turns."""
        turns = self.conversation.generations if self.conversation else ()
        return sum(len(turn.generated_ids) for turn in turns)

    @property
    def cached_tokens(self) -> int:
        """Tokens of prompts that were computed for several samples at once, in all turns."""
        turns = self.conversation.generations if self.conversation else ()
        return self.tokens_cached + sum(turn.cached_tokens for turn in turns)
