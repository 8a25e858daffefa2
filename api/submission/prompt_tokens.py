"""Prompt lengths of a job in tokens, estimated from characters."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from actograph.contract.chat.chat_job import ChatJobSpec
from actograph.contract.specs import CaptureJobSpec, EvaluationSpec
from api.submission.submit import Submission
from storage.samples import NewSample

#: usual for English text and a vocabulary of 30,000 tokens or more
USUAL_CHARACTERS_PER_TOKEN = 4.0
#: a text never has longer tokens on average, which gives its fewest tokens
MOST_CHARACTERS_PER_TOKEN = 8.0


@dataclass(frozen=True, kw_only=True)
class PromptTokens:
    """Prompt lengths in tokens over the samples of a job."""

    mean: float
    longest: int


def of_characters(submission: Submission, per_token: float) -> PromptTokens | None:
    """Lengths of all prompts, with `per_token` characters per token.

    Returns None if only the worker can read the dataset, or if it is empty.
    """
    if submission.total is None:
        return None
    longest = total = count = 0
    for characters in characters_of(submission):
        tokens = _tokens(characters, per_token)
        longest, total, count = max(longest, tokens), total + tokens, count + 1
    return PromptTokens(mean=total / count, longest=longest) if count else None


def fewest_of(sample: NewSample) -> int:
    """The fewest tokens that the prompt of a sample of inputs can have."""
    return _tokens(_of_input(sample), MOST_CHARACTERS_PER_TOKEN)


def _tokens(characters: int, per_token: float) -> int:
    return max(1, math.ceil(characters / per_token))


def characters_of(submission: Submission) -> Iterator[int]:
    """Characters of each prompt, without those of the chat template."""
    spec = submission.spec
    if isinstance(spec, CaptureJobSpec | ChatJobSpec):
        for sample in submission.samples():
            yield _of_input(sample)
        return
    around = {c.name: len(c.prefix) + len(c.suffix) + len(c.system or "") for c in spec.conditions}
    shown = _fewshot_characters(spec, submission)
    for sample in submission.samples():
        columns = sum(len(str(value)) for value in sample.input.get("columns", {}).values())
        yield len(sample.input["question"]) + columns + around[sample.condition] + shown


def _of_input(sample: NewSample) -> int:
    if "prompt" in sample.input:
        return len(sample.input["prompt"])
    if "prompt_token_ids" in sample.input:
        return int(MOST_CHARACTERS_PER_TOKEN) * len(sample.input["prompt_token_ids"])
    return sum(len(message["content"]) for message in sample.input["messages"])


def _fewshot_characters(spec: EvaluationSpec, submission: Submission) -> int:
    """Characters of the worked examples, estimated by the average problem."""
    if not spec.num_fewshot:
        return 0
    sizes = [len(s.input["question"]) + len(s.input["answer"]) for s in submission.samples()]
    return spec.num_fewshot * sum(sizes) // max(1, len(sizes))
