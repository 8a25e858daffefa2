"""Jobs of kind `chat`: what one request to an OpenAI-compatible route becomes.

Their samples hold everything in which such requests differ (messages, tools, max_tokens), the spec
what all samples of one batch must share. So requests of many clients can be run as one batch.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from actograph.contract.specs import GeneratingSpec, InputJobSpec, SampleTimeout, Spec

KIND = "chat"


class ChatInput(Spec):
    """One choice: a conversation, a text or token ids, and how it is answered.

    Attributes:
        max_tokens: most tokens to generate, 0 where the prompt is only read; None: `default_max_tokens`, or
            what the model's context leaves where that is less.
        top_logprobs: log probabilities are kept of each token and of so many likeliest; None keeps none.
        echo: the answer begins with the prompt, and so do the log probabilities.
        must_call: the answer is begun for the model as a call of one of `tools`.
        call_name: of this one.
        one_call: only the first call of an answer counts.
        live: the text is published while it is generated.
    """

    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    prompt_token_ids: list[int] | None = None
    tools: list[dict[str, Any]] | None = None
    must_call: bool = False
    call_name: str | None = None
    one_call: bool = False
    enable_thinking: bool = False
    max_tokens: int | None = Field(None, ge=0)
    default_max_tokens: int = Field(16, ge=1)
    top_logprobs: int | None = Field(None, ge=0)
    echo: bool = False
    live: bool = False

    @property
    def most_tokens(self) -> int:
        """Most tokens to generate, as far as the request says it."""
        return self.default_max_tokens if self.max_tokens is None else self.max_tokens


def is_only_read(given: Mapping[str, Any]) -> bool:
    """Whether nothing is generated after the prompt of a stored input."""
    return given.get("max_tokens") == 0


class ChatJobSpec(InputJobSpec, GeneratingSpec):
    """One request; `epochs` are its choices for each of `inputs`."""

    kind: Literal["chat"] = "chat"
    inputs: list[ChatInput] = Field(min_length=1)
    priority: int = Field(0, ge=0, le=9)
    sample_timeout_seconds: SampleTimeout = None

    @property
    def is_prefill(self) -> bool:
        return bool(self.inputs) and all(given.max_tokens == 0 for given in self.inputs)

    @property
    def scores_prompts(self) -> bool:
        """Whether log probabilities of prompts are asked for."""
        return any(given.echo and given.top_logprobs is not None for given in self.inputs)


def batch_key(spec: dict[str, Any]) -> dict[str, Any]:
    """What chat jobs that are run as one batch have in common, of a stored spec."""
    sampling = {k: v for k, v in spec["sampling"].items() if k not in ("seed", "max_tokens")}
    shared = ("capture", "interventions", "sample_timeout_seconds", "priority")
    return {"sampling": sampling} | {name: spec[name] for name in shared}
