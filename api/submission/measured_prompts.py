"""Prompt lengths of a job, measured on a sample with the model's tokenizer and chat template."""

import json
import logging
import os
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from actograph.contract.errors import ActographError
from actograph.contract.specs import CaptureJobSpec, EvaluationSpec, HubDataset
from actograph.datasets.dataset_rows import DatasetRow
from actograph.tasks.prompts import FewshotSampler, build_prompt, task_of
from actograph.tasks.rows import row_form
from api.dependencies import Services
from api.submission.prompt_tokens import PromptTokens, characters_of
from api.submission.submit import Submission
from storage.files import dataset_sources
from storage.files.dataset_sources import Uploads
from storage.queue import model_tokenizers
from storage.samples import NewSample

log = logging.getLogger(__name__)

#: tokenized prompts, spread evenly over the job; the longest prompt is added
SAMPLED_PROMPTS = 64
#: most characters of the tokenized prompts
SAMPLED_CHARACTERS = 4_000_000
#: rows to draw few-shot examples from; the worker draws from all rows
_EXAMPLE_ROWS = 256
_TIMEOUT_SECONDS = 30.0
_COUNTER = Path(__file__).with_name("token_counter.py")

Prompt = dict[str, Any]


def measure(services: Services, submission: Submission) -> tuple[PromptTokens, str] | str:
    """Measure prompt lengths and describe how; a text alone says why this is not possible."""
    with services.database.read() as session:
        definition = model_tokenizers.definition(session, submission.spec.model)
    if definition is None:
        return "no worker has stored the tokenizer of this model"
    characters = list(characters_of(submission))
    if not characters:
        return "the job has no prompts"
    spread = _spread(characters)
    longest = characters.index(max(characters))
    chosen = sorted({*spread, longest})
    try:
        prompts = json.dumps(_prompts(services, submission, chosen)).encode()
        counts = _count(prompts, definition)
    except (ActographError, OSError, subprocess.SubprocessError, ValueError) as error:
        log.warning("prompts of model %s cannot be counted: %s", submission.spec.model, error)
        return f"the prompts could not be tokenized ({type(error).__name__})"
    counted = {place: count for place, count in zip(chosen, counts, strict=True) if count is not None}
    sampled = [place for place in spread if place in counted]
    if not sampled:
        return "the model's chat template refuses the prompts"
    if isinstance(submission.spec, CaptureJobSpec) and submission.spec.truncate and submission.structure:
        counted = {at: min(count, submission.structure.context_length) for at, count in counted.items()}
    # characters and tokens grow by the same factor
    share = len(sampled) / len(characters) * sum(characters) / max(1, sum(characters[at] for at in sampled))
    mean = sum(counted[at] for at in sampled) / len(sampled) * share
    how = (
        f"prompt lengths: {len(counted):,} of {len(characters):,} prompts were tokenized with the model's "
        "tokenizer and chat template"
    )
    return PromptTokens(mean=mean, longest=max(*counted.values(), round(mean))), how


def _spread(characters: Sequence[int]) -> list[int]:
    """Positions of the prompts to tokenize, evenly spread."""
    total = len(characters)
    affordable = SAMPLED_CHARACTERS * total // max(1, sum(characters))
    count = max(1, min(total, SAMPLED_PROMPTS, affordable))
    return [place * total // count for place in range(count)]


def _prompts(services: Services, submission: Submission, places: Sequence[int]) -> list[Prompt]:
    """Prompts at these ascending positions, in the form of `api.submission.token_counter`."""
    samples = [s for at, s in enumerate(submission.samples()) if _is_in(places, at)]
    spec = submission.spec
    if isinstance(spec, EvaluationSpec):
        build = _of_task(services, spec, submission)
        return [build(at, sample) for at, sample in enumerate(samples)]
    thinking = bool(getattr(spec, "enable_thinking", False))
    return [_of_input(sample, thinking=thinking, is_prefill=spec.is_prefill) for sample in samples]


def _is_in(places: Sequence[int], place: int) -> bool:
    found = bisect_left(places, place)
    return found < len(places) and places[found] == place


def _of_input(sample: NewSample, *, thinking: bool, is_prefill: bool) -> Prompt:
    if "prompt" in sample.input:
        return {"text": sample.input["prompt"]}
    messages = sample.input["messages"]
    # an existing answer is read, not generated
    generates = not is_prefill or messages[-1]["role"] != "assistant"
    return _chat(messages, thinking=thinking, add_generation_prompt=generates)


def _of_task(
    services: Services, spec: EvaluationSpec, submission: Submission
) -> Callable[[int, NewSample], Prompt]:
    """Build prompts like the worker, but draw few-shot examples from fewer rows."""
    task = task_of(spec)
    conditions = {condition.name: condition for condition in spec.conditions}
    structure = submission.structure
    has_template = structure is not None and structure.chat_template
    is_chat = has_template if spec.apply_chat_template is None else spec.apply_chat_template
    drawn = 0 if task.examples else spec.num_fewshot
    tested = spec.fewshot_dataset is None or spec.fewshot_dataset == spec.dataset
    pool = _example_rows(services, spec, submission) if drawn else []
    sampler = FewshotSampler(pool, min(drawn, max(0, len(pool) - 1)), same_dataset=tested)

    def build(place: int, sample: NewSample) -> Prompt:
        row = DatasetRow.from_input(sample.sample_index, sample.input)
        # draws are replayed up to the row, so use its position in the sample
        examples = task.examples[: spec.num_fewshot] or sampler.choose(replace(row, index=place))
        built = build_prompt(
            task,
            row,
            conditions[sample.condition],
            fewshot=examples,
            is_chat=is_chat,
            fewshot_as_multiturn=spec.fewshot_as_multiturn,
        )
        if isinstance(built, str):
            return {"text": built}
        return _chat(built, thinking=spec.enable_thinking, add_generation_prompt=True)

    return build


def _example_rows(services: Services, spec: EvaluationSpec, submission: Submission) -> list[DatasetRow]:
    """Rows for few-shot examples; tested rows replace a dataset that only the worker can read."""
    source = spec.fewshot_dataset or spec.dataset
    if isinstance(source, HubDataset) or source == spec.dataset:
        tested: Iterable[NewSample] = islice(
            submission.samples(), 0, None, len(spec.conditions) * spec.epochs
        )
        return [DatasetRow.from_input(s.sample_index, s.input) for s in islice(tested, _EXAMPLE_ROWS)]
    uploads = Uploads(services.database, services.store)
    roots, reader = services.settings.data_roots, row_form(spec.task)
    return list(dataset_sources.read(source, uploads, roots, limit=_EXAMPLE_ROWS, reader=reader))


def _chat(messages: Sequence[Any], *, thinking: bool, add_generation_prompt: bool) -> Prompt:
    return {
        "messages": list(messages),
        "enable_thinking": thinking,
        "add_generation_prompt": add_generation_prompt,
    }


def _count(prompts: bytes, definition: bytes) -> list[int | None]:
    """Count the tokens of each prompt in a child process, see `api.submission.token_counter`.

    Raises:
        OSError, subprocess.SubprocessError, ValueError: the process failed or took too long.
    """
    ended = subprocess.run(
        [sys.executable, "-P", "-s", str(_COUNTER)],
        input=prompts + b"\n" + definition,
        capture_output=True,
        timeout=_TIMEOUT_SECONDS,
        check=True,
        # the child does not receive our secrets
        env={"PATH": os.environ.get("PATH", ""), "TOKENIZERS_PARALLELISM": "false"},
    )
    counts: list[int | None] = json.loads(ended.stdout)
    return counts
