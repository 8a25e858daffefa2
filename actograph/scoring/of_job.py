"""The scorers of an evaluation job: its own, or those of its task."""

from actograph.contract.specs import EvaluationSpec
from actograph.scoring.scorers import GSM8K_SCORERS, ScorerSet


def scorers_of(spec: EvaluationSpec) -> ScorerSet:
    """Raises InvalidRequest where a scorer does not fit the job."""
    return ScorerSet(spec.scorers or GSM8K_SCORERS, max_tokens=spec.sampling.max_tokens)
