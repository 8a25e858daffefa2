"""Capture jobs: resolve, check and expand."""

from actograph.contract.specs import CaptureJobSpec, CaptureSpec
from api.dependencies import Services
from api.submission import steps
from api.submission.steps import Checked, Resolved, Submission
from storage.samples.expansion import capture_samples


def resolve(services: Services, spec: CaptureJobSpec, owner: str | None) -> Resolved[CaptureJobSpec]:
    """Set the defaults; a capture job always captures."""
    spec = spec.model_copy(update={"capture": spec.capture or CaptureSpec()})
    return steps.resolve(services, spec, owner)


check = steps.check


def expand(checked: Checked[CaptureJobSpec]) -> Submission:
    """One sample for each input, condition and epoch."""
    spec = checked.spec
    total = len(spec.inputs) * max(1, len(spec.conditions)) * spec.epochs
    return checked.submission(lambda: capture_samples(spec), total)
