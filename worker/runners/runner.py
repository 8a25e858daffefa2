"""Interface between the drain and a job kind."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from actograph.contract.resources import Score, ToolMessage, ToolUse, ToolUseEnd
from actograph.contract.specs import SamplingSpec
from evals.tools import Called
from storage.queue.leases import LeasedSample
from storage.sessions.reader import SessionReader
from worker.engine.messages import Generation, ReadoutAt, TextEnd


@dataclass(frozen=True, kw_only=True)
class Prompt:
    text: str
    #: the model's input, never empty
    token_ids: tuple[int, ...]
    #: tokens of the text before it was cut to the model's context; None if it was not cut
    truncated_from: int | None = None
    #: most tokens to generate; None: the job's `max_tokens`
    max_tokens: int | None = None
    #: ends a turn, in addition to the stop strings
    stop_at: TextEnd | None = None
    #: number of likeliest tokens with log probabilities, beside the generated one; None: no log probabilities
    top_logprobs: int | None = None
    #: log probabilities of the prompt's tokens too
    score_prompt: bool = False
    #: the last token of a text that is one longer than the context: it is scored, and not read
    scored_next: int | None = None
    #: grammar that the answer follows, see `json_grammar`
    grammar: str | None = None
    #: end of the text that already belongs to the answer
    begun: str = ""
    #: the stored sample that is read again; nothing is generated
    replayed: "ReplayedSample | None" = None
    #: the prompts of a pair, one of which is read with rows of the other; nothing is generated
    pair: "PromptPair | None" = None


@dataclass(frozen=True, kw_only=True)
class ReplayedSample:
    """A stored sample that is read again: its session, and its result.

    Attributes:
        token_ids: all tokens of the session.
        turns: prompt and generated tokens of each turn of the model; of a text that was only read, the text.
        spec: the interventions and the condition of its job's spec.
        condition: under which its job ran it.
        same_model: whether its session was recorded with the model that reads it.
    """

    reader: SessionReader
    token_ids: Sequence[int]
    turns: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
    spec: Mapping[str, Any]
    condition: str
    same_model: bool
    completion: str
    scores: Mapping[str, Score]
    correct: bool | None
    tools: tuple[ToolUse, Sequence[ToolMessage]] | None


@dataclass(frozen=True, kw_only=True)
class PromptPair:
    """The sessions of a patched pair, and its metric.

    Attributes:
        answer, against: tokens whose probabilities are the metric.
        values: of each side by its name, if these are the metric.
    """

    clean: ReplayedSample
    corrupted: ReplayedSample
    answer: int | None = None
    against: int | None = None
    values: Mapping[str, ReadoutAt] = field(default_factory=dict)

    @property
    def next_tokens(self) -> tuple[int, ...]:
        """The tokens whose probabilities are the metric."""
        return tuple(token for token in (self.answer, self.against) if token is not None)

    @property
    def sides(self) -> Mapping[str, ReplayedSample]:
        """Both sides by name."""
        return {"clean": self.clean, "corrupted": self.corrupted}


@dataclass(frozen=True, kw_only=True)
class FurtherTurn:
    """The next turn of a conversation; `results_from` is the place where its tool results begin."""

    prompt: Prompt
    results_from: int
    #: True if the turn continues the text so far, and all of it is the answer
    continues: bool = False


class Runner(ABC):
    """Prompts, completions and scores of one job, during one slice."""

    #: the job's sampling, with the stop strings of its task; None if nothing is generated
    sampling: SamplingSpec | None
    #: whether requests may ask for log probabilities of prompts
    may_score = False
    #: whether a sample may have several turns
    takes_turns = False

    @abstractmethod
    def prompt(self, sample: LeasedSample) -> Prompt:
        """The prompt of a sample. Raises ActographError for a faulty sample; the others go on."""

    @abstractmethod
    def completion(self, sample: LeasedSample, token_ids: tuple[int, ...]) -> str:
        """The text of generated tokens, cut before the first stop string."""

    def sampling_of(self, sample: LeasedSample) -> SamplingSpec | None:
        """The sampling of one sample; None if its prompt is only read."""
        return self.sampling

    def further_turn(
        self, sample: LeasedSample, turns: Sequence[Sequence[int]], called: Called
    ) -> FurtherTurn | ToolUseEnd:
        """Next prompt after these turns, or the reason for the end. This may take seconds.

        Args:
            called: results of the earlier turns' calls; those of the last turn are appended.

        Raises ActographError if this sample cannot be prompted again; the others go on.
        """
        return "answer"

    def tools_of(
        self, sample: LeasedSample, turns: Sequence[Sequence[int]], called: Called, ended: ToolUseEnd
    ) -> tuple[ToolUse, Sequence[ToolMessage]] | None:
        """The record of a finished sample's tool use; None if it had no tools."""
        return None

    def logprobs(self, sample: LeasedSample, generation: Generation) -> Sequence[Mapping[str, Any]] | None:
        """Log probabilities in OpenAI's form; None if not requested."""
        return None

    def score(self, sample: LeasedSample, completion: str, generated_tokens: int) -> Mapping[str, Score]:
        """Verdicts by metric key; empty if the job kind has no scorers.

        Raises ActographError if this sample cannot be scored; the others go on.
        """
        return {}
