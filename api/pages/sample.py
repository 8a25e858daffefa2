"""One sample: messages, reasoning, verdicts, and the difference between conditions."""

import difflib
import re
from itertools import islice
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from actograph.contract.errors import NotFound
from actograph.contract.resources import Sample
from api.auth import READ
from api.dependencies import JobId, SampleId, Services, ServicesDep
from api.pages.live_sample import is_followed
from api.pages.rendering import render
from api.routes.jobs import get_job_sample, list_job_samples
from evals.scoring.completions import CLOSE, OPEN
from storage.index.pages import Order, PageOptions
from storage.samples import verdicts

router = APIRouter(include_in_schema=False, dependencies=[READ])

#: characters of a text that the page shows; the JSON has all
SHOWN = 100_000
#: words of a text that are compared, since the time grows with their product
COMPARED = 2000


class TextDifference(NamedTuple):
    """A part of the difference between two texts: `same`, `ins` (only in this one) or `del`."""

    kind: str
    text: str


@router.get("/jobs/{job_id}/samples/{sample_id}")
def show_sample(
    request: Request,
    services: ServicesDep,
    job_id: JobId,
    sample_id: SampleId,
    against: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    sample = get_job_sample(services, job_id, sample_id)
    with services.database.read() as session:
        problem = verdicts.of_problem(session, job_id, sample.sample_index, sample.epoch)
    others = {condition: other for condition, other in problem if other != sample_id}
    thoughts, answer = split_thoughts(sample.completion or "")
    values = {
        "sample": sample,
        "is_followed": is_followed(sample),
        "others": others,
        "against": against,
        "pieces": _pieces(services, sample, others, against),
        "thoughts": thoughts,
        "answer": answer,
        "before": _neighbour(services, sample, "desc"),
        "after": _neighbour(services, sample, "asc"),
        "shown": SHOWN,
    }
    return render(request, "sample.html", values)


def split_thoughts(completion: str) -> tuple[str, str]:
    """Split a completion into its reasoning, "" without one, and the answer."""
    if CLOSE in completion:  # a chat template may have opened it
        thoughts, _, answer = completion.partition(CLOSE)
        return thoughts.strip().removeprefix(OPEN).strip(), answer.lstrip()
    if completion.lstrip().startswith(OPEN):
        return completion.lstrip().removeprefix(OPEN).strip(), ""
    return "", completion


def difference(here: str, there: str) -> list[TextDifference]:
    """The difference between the first `COMPARED` words of two texts."""
    ours, theirs = (
        [word[0] for word in islice(re.finditer(r"\S+\s*|\s+", text[:SHOWN]), COMPARED)]
        for text in (here, there)
    )
    pieces = []
    for kind, i, j, k, n in difflib.SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if kind == "equal":
            pieces.append(TextDifference("same", "".join(ours[i:j])))
            continue
        found = (TextDifference("ins", "".join(ours[i:j])), TextDifference("del", "".join(theirs[k:n])))
        pieces += [piece for piece in found if piece.text]
    return pieces


def _pieces(services: Services, sample: Sample, others: dict[str, str], against: str) -> list[TextDifference]:
    """Raises NotFound if the problem has no sample under the condition `against`."""
    if not against:
        return []
    if against not in others:
        raise NotFound(f"this problem has no sample under the condition {against}", param="against")
    other = get_job_sample(services, sample.job_id, others[against])
    return difference(sample.completion or "", other.completion or "")


def _neighbour(services: Services, sample: Sample, order: Order) -> str:
    """Id of the next sample in this order, or ""."""
    page = PageOptions(after=sample.id, limit=1, order=order)
    found = list_job_samples(services=services, job_id=sample.job_id, page=page).data
    return found[0].id if found else ""
