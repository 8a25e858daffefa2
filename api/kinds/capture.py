"""Capture jobs: prompts, conversations, or the texts of a dataset."""

from functools import partial

from actograph.contract.job_specs import CaptureJobSpec
from api import checks, inputs
from api.dependencies import Services
from api.submission import Submission, outlook, with_defaults
from evals.dataset_rows import Texts
from storage.samples.expansion import capture_samples


def resolve(services: Services, body: CaptureJobSpec) -> CaptureJobSpec:
    """Find the dataset, and set the defaults. Raises InvalidDataset, UnknownModel."""
    return with_defaults(services, inputs.located(services, body))


def check(services: Services, spec: CaptureJobSpec, owner: str) -> Submission[CaptureJobSpec]:
    """Compare the spec with its model. Raises the errors of `checks.passed`."""
    return checks.passed(outlook(services, spec, owner), checks.messages, checks.prompt_conditions)


def expand(services: Services, submission: Submission[CaptureJobSpec]) -> Submission[CaptureJobSpec]:
    """One sample for each input or row, condition and epoch. Raises InvalidDataset, InvalidRequest."""
    spec = submission.spec
    rows = inputs.rows(services, spec, Texts(spec.text_field))
    return submission.with_samples(partial(capture_samples, spec, rows), len(spec.inputs or rows))
