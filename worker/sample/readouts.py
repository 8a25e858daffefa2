"""The readouts of a job: their stored vectors, ready for the engine."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from actograph.contract.errors import InvalidRequest, NotFound
from actograph.contract.interventions import StoredVector
from actograph.contract.models import ModelStructure
from actograph.contract.readouts import (
    ReadoutCapture,
    bias_of,
    name_of,
    require_distinct,
    resolve_readout,
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
    if not capture.readouts:
        return {}
    stored = []
    with database.read() as session:
        for place, one in enumerate(capture.readouts):
            param = f"capture.readouts.{place}.vector"
            try:
                stored.append(vectors.resource(vectors.get(session, one.vector)))
            except NotFound:
                raise InvalidRequest(
                    f"{param}: there is no vector {one.vector}; it was deleted after the job was submitted",
                    param=param,
                ) from None
    require_distinct(name_of(one, vector) for one, vector in zip(capture.readouts, stored, strict=True))
    found: dict[str, ReadoutInUse] = {}
    for place, (one, vector) in enumerate(zip(capture.readouts, stored, strict=True)):
        param = f"capture.readouts.{place}"
        name = stored_name(name_of(one, vector))
        readout = Readout(
            name=name,
            hook=resolve_readout(one, vector, model, structure, param),
            sha256=vector.sha256,
            bias=bias_of(one, vector, param),
            vector=np.array(vector.vector, np.float32),
        )
        found[name] = ReadoutInUse(one, vector, readout)
    return found
