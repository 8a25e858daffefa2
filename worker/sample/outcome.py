"""Outcomes of a batch's samples, and groups of samples that are sampled alike."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from actograph.contract.errors import ActographError
from actograph.contract.resources import Score
from actograph.contract.resources.tool_use import ToolMessage, ToolUse
from actograph.contract.specs import SamplingSpec
from storage.samples import LeasedSample
from worker.engine.requests import Generation
from worker.runners.runner import Prompt, Runner
from worker.sample.conversation import Conversation
from worker.sample.recording import Recorded

T = TypeVar("T")


class Interrupted(ActographError):
    """The batch was ended before this sample; the sample is given back and runs again."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one sample; `error` is None if it completed."""

    lease: LeasedSample
    prompt: Prompt | None = None
    #: the only turn, or the last of the conversation
    generation: Generation | None = None
    #: None if the job's samples have one turn
    conversation: Conversation | None = None
    tools: tuple[ToolUse, Sequence[ToolMessage]] | None = None
    completion: str = ""
    scores: Mapping[str, Score] | None = None
    #: None unless requested
    logprobs: Sequence[Mapping[str, Any]] | None = None
    #: None if nothing is captured
    recorded: Recorded | None = None
    error: ActographError | None = None

    @property
    def chosen_tokens(self) -> int:
        """Tokens that the model chose, in all turns."""
        if self.conversation is not None:
            return sum(len(turn.generated_ids) for turn in self.conversation.generations)
        return len(self.generation.generated_ids) if self.generation else 0


def by_sampling(
    items: Mapping[int, T], lease_of: Callable[[T], LeasedSample], runner: Runner
) -> Iterator[tuple[SamplingSpec | None, dict[int, T]]]:
    """Groups with equal sampling, in the order of their first members; seeds are ignored."""
    groups: list[tuple[SamplingSpec | None, dict[int, T]]] = []
    for place, item in items.items():
        sampling = _seedless(runner.sampling_of(lease_of(item)))
        for known, group in groups:
            if known == sampling:
                group[place] = item
                break
        else:
            groups.append((sampling, {place: item}))
    yield from groups


def _seedless(sampling: SamplingSpec | None) -> SamplingSpec | None:
    """The sampling without the job's seed; each sample has its own."""
    return None if sampling is None else sampling.model_copy(update={"seed": 0})
