"""A store as large as the page must stay fast with: many jobs and sessions, many samples, a long session."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.contract.job_specs import job_spec_adapter
from actograph.contract.resources import Score
from storage import migrate
from storage.artifacts.store import ArtifactStore
from storage.index.database import Database
from storage.queue.commit import Ended
from storage.samples import NewSample
from tests.support import leasing
from tests.support.index_rows import Shape, fill
from tests.support.samples import result
from tests.support.submitting import insert, insert_capture
from tests.support.viewed import store_session

MODEL = "example/usual"
CONDITIONS = ("baseline", "urgent")
#: channels with large numbers in every row, as trained models have, and how many times as large
OUTLIERS, FACTOR = (7, 133, 700), 60
_WORDS = ("The", " farmer", " had", " 42", " apples", " and", " sold", ",", "\n", " so", " =", " each")
_QUESTION = "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. "
_SCORERS = ("exact_match,strict-match", "exact_match,flexible-extract", "exact_match,numeric")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large the store is."""

    jobs: int = 10_000
    sessions: int = 100_000
    #: of the large job, each under two conditions
    problems: int = 1319
    #: of the large session
    tokens: int = 2048
    layers: int = 28
    width: int = 1024


@dataclass(frozen=True, kw_only=True)
class LargeStore:
    """Ids of what was made besides the many rows."""

    #: evaluation with two samples for each problem, without sessions
    job_id: str
    session_id: str


def make(database: Database, store: ArtifactStore, sizes: Sizes) -> LargeStore:
    """Fill an empty database and an empty store. The rows of the many sessions have no files."""
    migrate.upgrade(database)
    fill(database, Shape(sessions=sizes.sessions, per_job=sizes.sessions // sizes.jobs))
    return LargeStore(
        job_id=_evaluation(database, sizes.problems), session_id=_session(database, store, sizes)
    )


def _evaluation(database: Database, problems: int) -> str:
    """Insert an evaluation whose samples have all ended, half of them right, and some without an answer."""
    body = {
        "kind": "evaluation",
        "model": MODEL,
        "task": "gsm8k",
        "dataset": {"file_id": f"file_{0:032x}"},
        "conditions": [{"name": name} for name in CONDITIONS],
        "tags": ["large"],
    }
    new = [
        NewSample(
            sample_index=index, condition=name, epoch=0, input={"question": _QUESTION, "target": "72"}, seed=0
        )
        for index in range(problems)
        for name in CONDITIONS
    ]
    job_id = insert(database, job_spec_adapter.validate_python(body), new)
    leases = leasing.begin(database, job_id, len(new))
    prompt, completion = 8 * _QUESTION, 4 * _QUESTION
    ended = []
    for place, lease in enumerate(leases):
        answer = None if place % 11 == 0 else str(place)
        scores = {name: Score(value=float(place % 2), answer=answer) for name in _SCORERS}
        done = result(
            prompt=prompt, completion=completion, scores=scores, prompt_tokens=180, generated_tokens=90
        )
        ended.append(Ended(lease=lease, result=done))
    with database.write() as session:
        leasing.end(session, *ended)
    return job_id


def _session(database: Database, store: ArtifactStore, sizes: Sizes) -> str:
    """Store a session with rows of every layer in float16."""
    job_id = insert_capture(database, ["The farmer"], model=MODEL)
    (lease,) = leasing.begin(database, job_id)
    texts = [_WORDS[place % len(_WORDS)] for place in range(sizes.tokens)]
    return store_session(database, store, lease, texts, dict(_rows(sizes)), model=MODEL)


def _rows(sizes: Sizes) -> Iterator[tuple[str, NDArray[Any]]]:
    """Random rows of each layer, whose norm grows with the layer."""
    random = np.random.default_rng(0)
    for layer in range(sizes.layers):
        rows = random.standard_normal((sizes.tokens - 1, sizes.width), np.float32) * (1 + layer / 8)
        rows[:, [channel % sizes.width for channel in OUTLIERS]] *= FACTOR
        yield f"resid_post.{layer}", rows.astype("<f2")
