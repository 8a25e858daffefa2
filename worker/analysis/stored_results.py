"""The results of an analysis as a session: JSON, CSV files, a figure and a manifest, without tensors."""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from actograph.contract.analyses import RESULT_FILE
from actograph.report.analysis_figures import figures_of
from storage.analyses import result_files
from storage.artifacts.store import ArtifactStore
from storage.queue.leases import LeasedSample
from storage.sessions.sessions import NewSession
from worker.analysis.run import AnalysisResults

DIRECTIONS_FILE = "directions.npz"


def store_results(store: ArtifactStore, lease: LeasedSample, results: AnalysisResults) -> NewSession:
    """Write the announced session of a lease.

    Raises:
        ServiceUnavailable: the store cannot be written to.
    """
    return result_files.store(store, lease, _contents(results))


def _contents(results: AnalysisResults) -> Iterator[tuple[str, bytes]]:
    yield RESULT_FILE, (results.body.model_dump_json(indent=1) + "\n").encode()
    for name, lines in results.tables.items():
        yield f"{name}.csv", _csv(lines)
    if results.arrays:
        yield DIRECTIONS_FILE, result_files.npz(results.arrays)
    for figure in figures_of(results.body):
        yield f"{figure.name}.png", figure.png
        yield f"{figure.name}.svg", figure.svg


def _csv(lines: Sequence[Mapping[str, Any]]) -> bytes:
    columns = list(dict.fromkeys(name for line in lines for name in line))
    text = io.StringIO()
    # the usual line end: with another one, the writer would not quote a token that is "\r"
    writer = csv.DictWriter(text, columns, lineterminator="\r\n")
    writer.writeheader()
    for line in lines:
        writer.writerow(
            {
                name: json.dumps(value) if isinstance(value, list | dict) else value
                for name, value in line.items()
            }
        )
    return text.getvalue().encode()
