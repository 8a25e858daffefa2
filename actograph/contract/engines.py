"""The engine of a job: traced or streaming, and the reason."""

from collections.abc import Mapping, Sequence
from typing import Any

from actograph.contract import hooks
from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import EngineUse, ModelStructure
from actograph.contract.specs import CaptureSpec
from actograph.contract.specs.job_base import EngineChoice


def engine_use(
    requested: EngineChoice, structure: ModelStructure, *, prefill: bool = False, names: Sequence[str] = ()
) -> EngineUse:
    """Decide which engine runs a job. `auto` takes the streaming engine if it can run all of the job.

    The API refuses by it at submission, and workers decide by it, see `of_spec`.

    Args:
        requested: `engine` of the spec; "auto" for jobs without this field.
        prefill: True if the job reads texts and generates nothing.
        names: canonical names or module locations, captured or changed by interventions.

    Raises:
        InvalidRequest: `streaming` was requested, and it cannot run the job.
    """
    if requested == "traced":
        return EngineUse(name="traced", reason="the job requests it")
    reason = why_traced(structure, prefill=prefill, names=names)
    if reason is None:
        return EngineUse(name="streaming", reason="verified against the traced engine at load")
    if requested == "streaming":
        raise InvalidRequest(
            f"The streaming engine cannot run this job: {reason}. Use engine auto or traced", param="engine"
        )
    return EngineUse(name="traced", reason=reason)


def of_spec(spec: Mapping[str, Any], structure: ModelStructure) -> EngineUse:
    """`engine_use` of a stored spec of any kind, or of lines of a batch file.

    A worker calls it when it starts a job, stores the result with `storage.jobs.jobs.set_engine` and puts it
    into the manifests.

    Raises:
        InvalidRequest: as `engine_use`.
        UnknownHook: a hook of the capture or of an intervention is unknown.
    """
    capture = CaptureSpec.model_validate(spec["capture"]) if spec.get("capture") else None
    edits = list(spec.get("interventions") or ())
    for condition in spec.get("conditions") or ():
        edits += condition.get("interventions") or ()
    names = [hooks.resolve(edit["hook"], structure) for edit in edits]
    if capture is not None and capture.mode != "off":
        names += hooks.expand(capture.points, capture.layers, capture.hooks, structure)
    prefill = capture is not None and capture.mode == "prefill"
    return engine_use(spec.get("engine", "auto"), structure, prefill=prefill, names=names)


def why_traced(structure: ModelStructure, *, prefill: bool = False, names: Sequence[str] = ()) -> str | None:
    """Reason why only the traced engine can run a job; None if the streaming engine can. See `engine_use`."""
    if not structure.streaming:
        return structure.streaming_refusal or f"it was not verified on {structure.model}"
    if prefill:
        return "the job reads texts and generates nothing"
    verified = set(structure.locations.values())
    for hook in names:
        if hook not in structure.hooks and hook not in verified:
            return f"{hook} is a module location, and only hook points were verified"
    return None
