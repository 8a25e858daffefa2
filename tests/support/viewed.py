"""Sessions with texts for the viewer, and results of analyses of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from actograph.contract.analyses import AnalysisResult
from actograph.contract.resources import TensorInfo
from actograph.contract.row_selection import Segment
from storage.artifacts.store import ArtifactStore
from storage.index.database import Database
from storage.queue.leases import LeasedSample
from storage.sessions.manifest import StoredTensor
from storage.sessions.writer import SessionWriter, TensorRows
from tests.support import leasing
from tests.support.analysed import insert_analysis
from tests.support.samples import manifest_of, result, session_of
from worker.analysis.run import AnalysisResults
from worker.analysis.stored_results import store_results

Rows = Mapping[str, NDArray[Any]]
#: tokens of the prompt, of the thought, and of the answer to the end
PROMPT, THOUGHT = 2, 3


def store_session(
    database: Database,
    store: ArtifactStore,
    lease: LeasedSample,
    texts: Sequence[str],
    rows: Rows,
    *,
    logprobs: Sequence[Mapping[str, Any]] | None = None,
    **shown: Any,
) -> str:
    """Complete a sample with a session whose tokens have these texts.

    Args:
        rows: hook -> rows of its last tokens but one, in float32 or float16.
        shown: fields of the session.
    """
    assert lease.session_id is not None
    ran, counts = len(texts) - 1, {"prompt_tokens": PROMPT, "generated_tokens": len(texts) - PROMPT}
    kinds = {name: f"F{8 * array.itemsize}" for name, array in rows.items()}
    infos = {
        name: StoredTensor(shape=array.shape, dtype=kinds[name], first_row=ran - len(array))
        for name, array in rows.items()
    }
    spans = [("prompt", 0, PROMPT), ("think", PROMPT, THOUGHT), ("answer", THOUGHT, len(texts))]
    manifest = manifest_of(
        lease.session_id, infos, job_id=lease.job_id, sample_id=lease.id, token_texts=list(texts),
        segments=[Segment(name=name, start=start, stop=stop) for name, start, stop in spans], **counts,
    )  # fmt: skip
    with SessionWriter(store, lease.session_id) as writer:
        writer.write_shard(
            [
                TensorRows(name, kinds[name], rows[name].shape, infos[name].first_row, rows[name])
                for name in rows
            ]
        )
        files = writer.finish(manifest, range(100, 100 + len(texts)))
    hooks = {name: TensorInfo(**info.model_dump(exclude={"parts"})) for name, info in infos.items()}
    new = session_of(lease, hooks=hooks, files=files, rows=ran, condition=lease.condition, **counts, **shown)
    done = result(session_id=lease.session_id, completion="".join(texts[PROMPT:]), logprobs=logprobs)
    with database.write() as session:
        leasing.complete(session, lease, done, new)
    return lease.session_id


def store_analysis(
    database: Database,
    store: ArtifactStore,
    kind: str,
    job_id: str,
    *,
    tables: Mapping[str, Any] | None = None,
    arrays: Rows | None = None,
) -> str:
    """Store results of an analysis of a job. Returns the id of their session."""
    analysis = insert_analysis(database, {"kind": kind, "sessions": {"jobs": [job_id]}})
    (lease,) = leasing.begin(database, analysis)
    body = AnalysisResult(kind=kind, spec={}, sessions=1)
    new = store_results(
        store, lease, AnalysisResults(body=body, tables=tables or {}, arrays=arrays or {}, summary="")
    )
    with database.write() as session:
        leasing.complete(session, lease, result(session_id=lease.session_id), new)
    return new.id
