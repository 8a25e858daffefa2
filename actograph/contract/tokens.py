"""Texts as tokens and tokens as text, in the form of vLLM's `/tokenize` and `/detokenize`."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from actograph.contract.base import Resource, Spec
from actograph.contract.chat.chat import TokenId
from actograph.contract.chat.chat_messages import ChatMessage, ToolDefinition
from actograph.contract.specs import MAX_PROMPT_CHARS

MAX_TOKENS = 1_000_000
ModelName = Annotated[str, Field(min_length=1, max_length=1024)]


class TokenizeRequest(Spec):
    """A text, or a conversation that the model's chat template renders."""

    model: ModelName | None = Field(None, description="Default: the model loaded last.")
    prompt: str | None = Field(None, max_length=MAX_PROMPT_CHARS)
    messages: list[ChatMessage] | None = Field(None, min_length=1, max_length=10_000, fail_fast=True)
    tools: list[ToolDefinition] | None = Field(None, max_length=128)
    enable_thinking: bool = False
    add_generation_prompt: bool = Field(True, description="End a conversation where the answer begins.")
    add_special_tokens: bool | None = Field(
        None, description="Add the tokenizer's special tokens; null adds those that a job would add."
    )
    return_token_strs: bool = Field(False, description="Return the text of each token too.")

    @model_validator(mode="after")
    def _one_input(self) -> "TokenizeRequest":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self

    @property
    def for_template(self) -> dict[str, Any]:
        """The input as the tokenizer's process takes it."""
        if self.messages is None:
            return {"text": self.prompt}
        return {
            "messages": [message.for_template() for message in self.messages],
            "tools": [tool.for_template() for tool in self.tools or ()] or None,
            "enable_thinking": self.enable_thinking,
            "add_generation_prompt": self.add_generation_prompt,
        }


class Tokenized(Resource):
    """The tokens of a text."""

    count: int
    max_model_len: int | None = Field(None, description="The model's context; null before its first load.")
    tokens: list[int]
    token_strs: list[str] | None = Field(
        None,
        description="The text of each token; joined, they are the whole text. A character of several tokens "
        "is the text of the last one.",
    )


class DetokenizeRequest(Spec):
    """Token ids."""

    model: ModelName | None = Field(None, description="Default: the model loaded last.")
    tokens: list[TokenId] = Field(max_length=MAX_TOKENS, fail_fast=True)


class Detokenized(Resource):
    """The text of token ids, with special tokens."""

    prompt: str
