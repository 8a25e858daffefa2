"""The readouts of a job: their stored vectors, ready for the engine."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from actograph.contract.errors import InvalidRequest, NotFound
from actograph.contract.interventions import StoredVector
from actograph.contract.models import ModelStructure
from actograph.contract.readouts import (
    ReadoutCapture,
    ReadoutMetric,
    bias_of,
    name_of,
    require_distinct,
    resolve_readout,
    short_name,
    stored_name,
)
from actograph.contract.specs import CaptureSpec
from storage.index.database import Database
from storage.sessions import vectors
from storage.sessions.manifest import AppliedReadout
from worker.engine.messages import Readout, ReadoutLimit


@dataclass(frozen=True)
class ReadoutInUse:
    """A readout of a capture, ready for the engine."""

    wanted: ReadoutCapture
    vector: StoredVector
    readout: Readout

    @property
    def stop(self) -> ReadoutLimit | None:
        """How it ends a request; None if it does not."""
        if not self.wanted.stops:
            return None
        return ReadoutLimit(
            name=self.readout.name, above=self.wanted.stop_above, below=self.wanted.stop_below
        )

    @property
    def record(self) -> AppliedReadout:
        """The entry of the manifest."""
        vector, readout = self.vector, self.readout
        return AppliedReadout(
            vector_id=vector.id,
            vector=vector.name,
            hook=readout.hook,
            bias=readout.bias,
            vector_sha256=readout.sha256,
        )


def readouts_of(
    database: Database, capture: CaptureSpec, model: str, structure: ModelStructure
) -> Mapping[str, ReadoutInUse]:
    """The readouts of a capture, by the stored name of their values.

    Args:
        structure: of the loaded model.

    Raises:
        InvalidRequest: a vector was deleted, or does not suit the model.
        UnknownHook: the model has no such hook.
    """
    wanted = {f"capture.readouts.{place}": one for place, one in enumerate(capture.readouts)}
    found = _in_use(database, wanted, model, structure)
    require_distinct(short_name(one.readout.name) for one in found)
    return {one.readout.name: one for one in found}


def metric_of(database: Database, metric: ReadoutMetric, model: str, structure: ModelStructure) -> Readout:
    """The readout that is the metric of a patch job; errors as of `readouts_of`."""
    (found,) = _in_use(database, {"metric.readout": metric.readout}, model, structure)
    return found.readout


def _in_use(
    database: Database, wanted: Mapping[str, ReadoutCapture], model: str, structure: ModelStructure
) -> list[ReadoutInUse]:
    """Readouts by the fields of the spec that name them."""
    stored = []
    if wanted:
        with database.read() as session:
            for param, one in wanted.items():
                try:
                    stored.append(vectors.resource(vectors.get(session, one.vector)))
                except NotFound:
                    raise InvalidRequest(
                        f"{param}.vector: there is no vector {one.vector}; it was deleted after the job was "
                        "submitted",
                        param=f"{param}.vector",
                    ) from None
    return [
        ReadoutInUse(
            one,
            vector,
            Readout(
                name=stored_name(name_of(one, vector)),
                hook=resolve_readout(one, vector, model, structure, param),
                sha256=vector.sha256,
                bias=bias_of(one, vector, param),
                vector=np.array(vector.vector, np.float32),
            ),
        )
        for (param, one), vector in zip(wanted.items(), stored, strict=True)
    ]
