"""Named variants of a job."""

from typing import Literal, TypeVar

from pydantic import Field

from actograph.contract.base import Name, Spec, Text
from actograph.contract.interventions import InterventionList
from actograph.contract.specs.sampling import SamplingChange

Tools = Literal["none", "calculator"]


class CaptureCondition(Spec):
    """A named variant of a capture job; all conditions have the same inputs and seeds."""

    name: Name = Field(description="Name in the results.")
    interventions: InterventionList = Field(
        default_factory=list, description="Applied after the job's, to the samples of this condition alone."
    )


class Condition(CaptureCondition):
    """A named variant of the prompt; all conditions of a job have the same problems and seeds."""

    system: Text | None = Field(None, description="System message (chat template only).")
    prefix: Text = Field("", description="Text before the question.")
    suffix: Text = Field("", description="Text after the question, separated by a space.")
    tools: Tools | None = Field(None, description="Tools of this condition; null uses the job's.")
    sampling: SamplingChange | None = Field(None, description="Changes of the job's sampling.")


C = TypeVar("C", bound=CaptureCondition)


def distinct_names(value: list[C]) -> list[C]:
    """Check that the conditions of a job have different names."""
    names = [c.name for c in value]
    if len(set(names)) != len(names):
        raise ValueError("condition names must differ")
    return value
