"""Turn the input file of a batch into its job.

The file may be large. It is read once and checked line by line, and its samples go to a temporary file before
they are inserted. So memory stays bounded and the transaction stays short.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from actograph.contract.batches import (
    BatchError,
    BatchInput,
    BatchJobSpec,
    BatchLine,
    BatchRequest,
    unit_key,
)
from actograph.contract.chat.chat_job import ChatJobSpec
from actograph.contract.errors import InvalidRequest
from actograph.contract.specs import CaptureSpec, SamplingSpec, canonical_digest
from api.dependencies import Services
from api.openai.batch_lines import InvalidBatch, LineReader, numbered
from api.submission import planning, prompt_tokens
from api.submission.expand import MAX_SAMPLES
from api.submission.prompt_tokens import PromptTokens
from api.submission.resolve import with_defaults, within_context
from api.submission.submit import Submission, read_outlook
from storage.samples import NewSample

#: most errors reported for one file
MOST_ERRORS = 100


@contextmanager
def submission_of(
    services: Services, batch_id: str, request: BatchRequest, owner: str | None
) -> Iterator[Submission]:
    """Check the job of a batch. Its samples can be read within the block.

    Raises:
        InvalidBatch: with every invalid line, up to a limit.
        ActographError: the job as a whole is refused, or a service is unreachable.
    """
    with TemporaryFile() as kept:
        lines = _Lines(kept)
        reader = LineReader(services, request)
        errors: list[BatchError] = []
        for number, text in numbered(services, request):
            try:
                line, spec, hooks = reader.read(number, text)
            except InvalidRequest as error:
                param = error.param or None
                errors.append(BatchError(code=error.code, message=error.message, line=number, param=param))
                if len(errors) >= MOST_ERRORS:
                    break
                continue
            if not errors:
                lines.add(line, spec, hooks)
        if not errors and not lines.requests:
            errors.append(BatchError(code="empty_file", message="the input file has no requests"))
        if not errors and lines.samples > MAX_SAMPLES:
            message = f"{lines.samples} choices; one batch may have {MAX_SAMPLES}"
            errors.append(BatchError(code="too_many_tasks", message=message))
        if errors:
            raise InvalidBatch(errors)
        yield _submission(services, batch_id, request, owner, lines)


@dataclass
class _Part:
    """Lines with the same capture."""

    capture: CaptureSpec | None
    hooks: list[str] | None
    samples: int = 0
    tokens: int = 0
    longest: int = 0
    most_tokens: int = 0


@dataclass
class _Lines:
    """Valid lines; their samples are in a temporary file, one JSON line per request."""

    kept: BinaryIO
    requests: int = 0
    samples: int = 0
    parts: dict[str, _Part] = field(default_factory=dict)
    #: digest of the fields that samples of one batch share -> (number, samples)
    kinds: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: canonical name
    model: str = ""
    #: sampling of the first line
    sampling: SamplingSpec = field(default_factory=SamplingSpec)
    most_tokens: int = 0

    def add(self, line: BatchLine, spec: ChatJobSpec, hooks: list[str] | None) -> None:
        given = BatchInput(
            **spec.inputs[0].model_dump(),
            custom_id=line.custom_id,
            sampling=spec.sampling,
            choices=spec.epochs,
            capture=spec.capture,
            interventions=spec.interventions,
            expires_after=spec.expires_after,
            tags=spec.tags,
            metadata=spec.metadata,
        )
        stored = given.model_dump(mode="json", exclude_none=True)
        for name in ("interventions", "tags", "metadata"):
            if not stored[name]:
                del stored[name]
        digest = canonical_digest(unit_key(stored))
        kind, count = self.kinds.get(digest, (len(self.kinds), 0))
        self.kinds[digest] = (kind, count + given.choices)
        self.kept.write(json.dumps([kind, stored], separators=(",", ":")).encode() + b"\n")
        if not self.requests:
            self.model, self.sampling = spec.model, spec.sampling
        self.requests += 1
        self.samples += given.choices
        self._count(given, hooks, next(_samples_of(0, stored)))

    def _count(self, given: BatchInput, hooks: list[str] | None, sample: NewSample) -> None:
        """Count a line for the estimate."""
        digest = given.capture.digest() if given.capture else ""
        part = self.parts.setdefault(digest, _Part(given.capture, hooks))
        most, tokens = given.most_tokens, prompt_tokens.fewest_of(sample)
        part.samples += given.choices
        part.tokens += given.choices * tokens
        part.longest = max(part.longest, tokens)
        part.most_tokens = max(part.most_tokens, most)
        self.most_tokens = max(self.most_tokens, most)

    @property
    def hooks(self) -> list[str] | None:
        """Captured hooks of all lines; None if no worker has loaded the model yet."""
        found: dict[str, None] = {}
        for part in self.parts.values():
            if part.hooks is None:
                return None
            found |= dict.fromkeys(part.hooks)
        return list(found)

    def in_running_order(self) -> Iterator[NewSample]:
        """Yield every sample with its position. Samples that can share a batch are consecutive.

        So a file with alternating captures runs in the same batches as a sorted file.
        """
        places: dict[int, int] = {}
        start = 0
        for kind, count in self.kinds.values():
            places[kind] = start
            start += count
        self.kept.seek(0)
        for index, text in enumerate(self.kept):
            kind, stored = json.loads(text)
            for sample in _samples_of(index, stored):
                yield replace(sample, position=places[kind])
                places[kind] += 1


def _samples_of(index: int, stored: dict[str, Any]) -> Iterator[NewSample]:
    """One sample for each choice of a line, with the seeds s, s + 1, s + 2, ..."""
    for choice in range(stored["choices"]):
        yield NewSample(
            sample_index=index,
            condition="",
            epoch=choice,
            input=stored,
            seed=(stored["sampling"]["seed"] + choice) % 2**63,
        )


def _submission(
    services: Services,
    batch_id: str,
    request: BatchRequest,
    owner: str | None,
    lines: _Lines,
) -> Submission:
    """Build the job. Raises InsufficientResources if it cannot fit."""
    spec = with_defaults(
        services,
        BatchJobSpec(
            model=lines.model,
            sampling=lines.sampling,
            priority=request.priority,
            tags=request.tags,
            metadata=request.metadata or {},
            deadline_seconds=request.window_seconds,
            # failures of one request say nothing about others
            max_consecutive_failures=0,
            batch_id=batch_id,
            endpoint=request.endpoint,
            requests=lines.requests,
        ),
    )
    with services.database.read() as session:
        ahead = read_outlook(services, session, spec)

    # a line above the context fails alone
    whole = Submission(
        spec=within_context(spec, ahead.structure, lines.most_tokens),
        outlook=ahead,
        hooks=lines.hooks,
        samples=lines.in_running_order,
        total=lines.samples,
        owner=owner,
    )
    planning.admit_parts(
        services,
        [
            planning.Part(
                submission=replace(
                    whole,
                    spec=within_context(spec, ahead.structure, part.most_tokens).model_copy(
                        update={"capture": part.capture}
                    ),
                    hooks=part.hooks,
                    total=part.samples,
                ),
                lengths=PromptTokens(mean=part.tokens / part.samples, longest=part.longest),
            )
            for part in lines.parts.values()
        ],
    )
    return whole
