"""Interface between the drain and a job kind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from actograph.contract.resources import Score
from actograph.contract.resources.tool_use import ToolMessage, ToolUse, ToolUseEnd
from actograph.contract.specs import SamplingSpec
from storage.samples import LeasedSample
from worker.engine.requests import Generation, TextEnd


@dataclass(frozen=True, kw_only=True)
class Prompt:
    text: str
    #: tokens as the model is given them, never empty
    token_ids: tuple[int, ...]
    #: tokens that the text had before it was cut to the model's context; None where it was not cut
    truncated_from: int | None = None
    #: most tokens to generate after it; None: as the job's sampling says
    max_tokens: int | None = None
    #: ends a turn beside the stop strings
    stop_at: TextEnd | None = None
    #: log probabilities are wanted of each generated token and of so many likeliest; None: none are
    top_logprobs: int | None = None
    #: and those of the prompt's own tokens
    score_prompt: bool = False
    #: the end of the text where it is the beginning of the answer already
    begun: str = ""


@dataclass(frozen=True, kw_only=True)
class FurtherTurn:
    """A turn that follows: the whole conversation, in which results of tools stand from a place on."""

    prompt: Prompt
    results_from: int
    #: the text of the turns so far goes on, and all of it is the answer
    continues: bool = False


class Runner(Protocol):
    """Made once per time slice for one job."""

    @property
    def sampling(self) -> SamplingSpec | None:
        """The job's sampling, with the stop strings of its task; None where nothing is generated."""
        ...

    @property
    def may_score(self) -> bool:
        """Whether log probabilities of prompts may be asked for."""
        ...

    def prompt(self, sample: LeasedSample) -> Prompt:
        """Raises ActographError where this sample cannot be prompted; the others go on."""
        ...

    @property
    def takes_turns(self) -> bool:
        """Whether a sample may have several turns."""
        ...

    def sampling_of(self, sample: LeasedSample) -> SamplingSpec | None:
        """The job's sampling with the changes of the sample's condition; None where it is only read."""
        ...

    def further_turn(self, sample: LeasedSample, turns: Sequence[Sequence[int]]) -> FurtherTurn | ToolUseEnd:
        """Next prompt after the given turns, or the reason for the end.

        Raises ActographError where this sample cannot be prompted again; the others go on.
        """
        ...

    def tools_of(
        self, sample: LeasedSample, turns: Sequence[Sequence[int]], ended: ToolUseEnd
    ) -> tuple[ToolUse, Sequence[ToolMessage]] | None:
        """The record of a finished sample's tool use; None where it had no tools."""
        ...

    def completion(self, sample: LeasedSample, token_ids: tuple[int, ...]) -> str:
        """The text of generated tokens, cut before the first stop string."""
        ...

    def live_text(self, token_ids: Sequence[int]) -> str:
        """The text of some of the generated tokens, for those who follow; stop strings are not looked for."""
        ...

    def logprobs(self, sample: LeasedSample, generation: Generation) -> Sequence[Mapping[str, Any]] | None:
        """Log probabilities in OpenAI's form; None if not requested."""
        ...

    def score(self, sample: LeasedSample, completion: str, generated_tokens: int) -> Mapping[str, Score]:
        """Verdicts by metric key; empty where the job kind scores nothing.

        Raises ActographError where this sample cannot be judged; the others go on.
        """
        ...
