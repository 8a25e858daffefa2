"""Texts of a job's conditions side by side: where they part, and how far captured rows moved there."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from actograph.concurrency import each_of
from actograph.contract import hooks
from actograph.contract.errors import InvalidRequest, NotFound
from actograph.contract.resources import (
    ConditionText,
    JobStatus,
    ProblemTexts,
    SampleStatus,
    TextComparison,
)
from storage.artifacts.store import ArtifactStore
from storage.results.comparisons import Twin, baseline_of, condition_names
from storage.sessions import selected_rows
from storage.sessions.reader import SessionReader
from storage.tables.models import JobRow, SampleRow

#: rows that one answer may read, since the client waits for it
MAX_ROWS = 20_000
_READERS = 8


@dataclass(frozen=True, slots=True)
class _Text:
    """A completed sample."""

    prompt: str
    completion: str
    session_id: str | None


@dataclass(frozen=True, slots=True)
class TextPage:
    """Texts of a page of problems, before sessions are read.

    Attributes:
        problems: (sample index, epoch) -> condition -> text, of which the baseline has one.
        wanted: hooks of the shifts; empty for all.
    """

    job_id: str
    status: JobStatus
    baseline: str
    others: Sequence[str]
    problems: Mapping[Twin, Mapping[str, _Text]]
    wanted: Sequence[str]
    has_more: bool

    def compare(self, store: ArtifactStore) -> TextComparison:
        """Compare the texts, and the rows of both sessions where there are two. It needs no database.

        Raises:
            UnknownHook: a wanted hook is not stored.
            StoreDamaged: the files are damaged.
        """
        data = list(each_of(lambda one: self._problem(store, *one), self.problems.items(), _READERS))
        return TextComparison(
            job_id=self.job_id,
            status=self.status,
            baseline=self.baseline,
            data=data,
            has_more=self.has_more,
        )

    def _problem(self, store: ArtifactStore, twin: Twin, texts: Mapping[str, _Text]) -> ProblemTexts:
        first = texts[self.baseline]
        reader = None if first.session_id is None else SessionReader(store, first.session_id)
        found = {}
        for name in self.others:
            other = texts.get(name)
            if other is None:
                found[name] = ConditionText(text=None)
                continue
            rows: dict[str, Any] = {}
            if reader is not None and other.session_id is not None:
                with suppress(NotFound):  # a session that was deleted meanwhile
                    rows = _sessions(reader, SessionReader(store, other.session_id), self.wanted)
            found[name] = ConditionText(
                text=other.completion,
                prompt=None if other.prompt == first.prompt else other.prompt,
                session_id=other.session_id,
                character=_parting(first.completion, other.completion),
                **rows,
            )
        return ProblemTexts(
            sample_index=twin[0],
            epoch=twin[1],
            prompt=first.prompt,
            baseline=first.completion,
            session_id=first.session_id,
            conditions=found,
        )


def read(
    session: Session,
    row: JobRow,
    *,
    baseline: str | None,
    wanted: Sequence[str],
    limit: int,
    offset: int,
) -> TextPage:
    """Read the texts of a page of problems that the baseline has completed.

    Raises:
        InvalidRequest: the job has fewer than two conditions, none named `baseline`, or more rows to compare
            than one answer may read.
        UnknownHook: the job stores none of a wanted hook.
    """
    names = condition_names(row)
    first = baseline_of(names, baseline)
    chosen = hooks.matching(row.hooks or [], wanted) if wanted else list(row.hooks or [])
    if (rows := limit * len(names) * len(chosen)) > MAX_ROWS:
        raise InvalidRequest(
            f"{limit} problems of {len(names)} conditions and {len(chosen)} hooks are {rows} rows; one "
            f"answer reads {MAX_ROWS}. Name hooks, or use a smaller limit",
            param="limit",
        )
    of_job = (SampleRow.job_id == row.id, SampleRow.status == SampleStatus.COMPLETED)
    order = (SampleRow.sample_index, SampleRow.epoch)
    page = sa.select(*order).where(*of_job, SampleRow.condition == first).order_by(*order)
    twins = [(index, epoch) for index, epoch in session.execute(page.offset(offset).limit(limit + 1))]
    shown = twins[:limit]
    problems: dict[Twin, dict[str, _Text]] = {twin: {} for twin in shown}
    if shown:
        texts = (SampleRow.condition, SampleRow.prompt, SampleRow.completion, SampleRow.session_id)
        span = SampleRow.sample_index.between(shown[0][0], shown[-1][0])
        for one in session.execute(sa.select(*order, *texts).where(*of_job, span)):
            twin = (one.sample_index, one.epoch)
            if twin in problems and one.condition in names:
                problems[twin][one.condition] = _Text(one.prompt or "", one.completion or "", one.session_id)
    return TextPage(
        job_id=row.id,
        status=JobStatus(row.status),
        baseline=first,
        others=[name for name in names if name != first],
        problems=problems,
        wanted=chosen,
        has_more=len(twins) > limit,
    )


def _parting(first: Sequence[object], second: Sequence[object]) -> int | None:
    """The first place at which two sequences differ; None if they are equal."""
    ended = object()
    pairs = zip_longest(first, second, fillvalue=ended)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), None)


def _sessions(first: SessionReader, second: SessionReader, wanted: Sequence[str]) -> dict[str, Any]:
    """First differing token of two sessions, and shifts of the rows before it.

    Row P - 1 + k chose the generated token k. If both texts are equal, or one ends there, the last row that
    both have with the same generated tokens before it is compared.
    """
    readers = (first, second)
    generated = [reader.token_ids()[reader.manifest.prompt_tokens :] for reader in readers]
    token = _parting(*generated)
    last = max(0, min(map(len, generated)) - 1)
    place = last if token is None else min(token, last)
    shifts = {}
    for hook in wanted:
        rows = [_row(reader, hook, reader.manifest.prompt_tokens - 1 + place) for reader in readers]
        a, b = rows
        if a is None or b is None or a.shape != b.shape or not (length := float(np.linalg.norm(a))):
            continue
        shift = float(np.linalg.norm(b - a)) / length
        if np.isfinite(shift):
            shifts[hook] = shift
    return {"token": token, "shifts": shifts}


def _row(reader: SessionReader, hook: str, token: int) -> NDArray[np.float64] | None:
    """The row [width] of one token; None if the session has none, or no numbers to subtract."""
    info = reader.manifest.tensors.get(hook)
    if info is None or info.summary is not None or not info.dtype.startswith(("F", "BF")):
        return None
    row = selected_rows.of_token(reader, hook, token)
    return None if row is None else row.astype(np.float64)
