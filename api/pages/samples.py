"""One sample: messages, reasoning, verdicts, and the difference between conditions."""

import difflib
import re
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Query, Request
from starlette.responses import HTMLResponse, Response

from actograph.contract.errors import NotFound
from actograph.contract.resources import Sample
from actograph.scoring.completions import CLOSE, OPEN
from api.dependencies import JobId, SampleId, ServicesDep
from api.pages.rendering import render
from api.routes.samples import get_job_sample
from api.routing import READ, Routes
from storage.samples import verdicts

router = Routes(include_in_schema=False)

#: words of each text that are compared, since the comparison takes their product in time
DIFF_WORDS = 3000
#: characters of a text that the page holds; the JSON route has all
MAX_CHARACTERS = 100_000


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of the difference between two texts."""

    kind: Literal["same", "only_here", "only_there"]
    text: str


@router.add("GET", "/jobs/{job_id}/samples/{sample_id}", READ, "One sample", response_class=HTMLResponse)
def show_sample(
    request: Request,
    services: ServicesDep,
    job_id: JobId,
    sample_id: SampleId,
    against: Annotated[str, Query(max_length=64, description="Another condition.")] = "",
) -> Response:
    sample = get_job_sample(services, job_id, sample_id)
    with services.database.read() as session:
        twins = verdicts.of_problem(session, job_id, sample.index, sample.epoch)
    others = [(condition, other) for condition, other in twins if other != sample_id]
    thought, answer = split_reasoning(sample.completion or "")
    values = {
        "sample": sample,
        "others": others,
        "against": against,
        "thought": thought,
        "answer": answer,
        "difference": _difference(services, sample, others, against) if against else None,
        "most": MAX_CHARACTERS,
    }
    return render(request, "sample.html", values)


def split_reasoning(completion: str) -> tuple[str, str]:
    """Split a completion into its reasoning, "" without one, and the text after it."""
    if CLOSE in completion:  # a template may have opened it
        thought, _, answer = completion.partition(CLOSE)
        return thought.strip().removeprefix(OPEN).strip(), answer.lstrip()
    if completion.lstrip().startswith(OPEN):
        return completion.lstrip().removeprefix(OPEN).strip(), ""
    return "", completion


def difference(here: str, there: str) -> list[Piece]:
    """Difference between the first `DIFF_WORDS` words of two texts."""
    first, second = _words(here), _words(there)
    pieces = []
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=False)
    for kind, i, j, k, m in matcher.get_opcodes():
        if kind == "equal":
            pieces.append(Piece("same", "".join(first[i:j])))
            continue
        if j > i:
            pieces.append(Piece("only_here", "".join(first[i:j])))
        if m > k:
            pieces.append(Piece("only_there", "".join(second[k:m])))
    return pieces


def _words(text: str) -> list[str]:
    """Words with the white space after them."""
    found = []
    for match in re.finditer(r"\S+\s*|\s+", text[:MAX_CHARACTERS]):
        found.append(match.group())
        if len(found) == DIFF_WORDS:
            break
    return found


def _difference(
    services: ServicesDep, sample: Sample, others: list[tuple[str, str]], against: str
) -> list[Piece]:
    """Raises NotFound if the problem has no sample under the condition `against`."""
    for condition, sample_id in others:
        if condition == against:
            other = get_job_sample(services, sample.job_id, sample_id)
            return difference(sample.completion or "", other.completion or "")
    raise NotFound(f"this problem has no sample under the condition {against}", param="against")
