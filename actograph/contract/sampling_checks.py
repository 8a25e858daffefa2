"""What of a sampling the model of a job must be able to do."""

from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import ModelStructure
from actograph.contract.specs import SamplingSpec


def check_sampling(sampling: SamplingSpec, structure: ModelStructure) -> None:
    """Raises InvalidRequest where a token is biased that the model does not have."""
    beyond = [token for token in sampling.logit_bias if token >= structure.vocab_size]
    if beyond:
        raise InvalidRequest(
            f"logit_bias names token {beyond[0]}; this model's ids are from 0 to {structure.vocab_size - 1}",
            param="sampling.logit_bias",
        )
