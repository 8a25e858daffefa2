"""/v1/tokenize and /v1/detokenize, in vLLM's form."""

import logging
import subprocess

from sqlalchemy.orm import Session

from actograph.contract.errors import ActographError, InvalidRequest, NotFound
from actograph.contract.tokens import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest
from api.dependencies import Services, ServicesDep
from api.problems.validation import parse_body
from api.reading import token_texts
from api.requests.request_body import JsonBody
from api.routing import READ, Body, Routes
from api.submission import counter_process
from storage.queue import model_tokenizers, workers

log = logging.getLogger(__name__)
router = Routes(tags=["models"])

TEXT = Body(
    TokenizeRequest,
    {"a text": {"prompt": "The capital of France is", "return_token_strs": True}},
    max_bytes=24 << 20,
)
IDS = Body(DetokenizeRequest, {"token ids": {"tokens": [464, 3139, 286]}}, max_bytes=24 << 20)


class TokenizerFailed(ActographError):
    """The stored tokenizer failed."""


@router.add("POST", "/v1/tokenize", READ, "Tokens of a text", body=TEXT, alias="/tokenize", lane="reads")
def tokenize(services: ServicesDep, body: JsonBody) -> Tokenized:
    """Tokenize a text or a conversation as a job does, with the tokenizer that a worker has stored.

    404: no worker has loaded the model yet.
    """
    request = parse_body(TokenizeRequest, body)
    with services.database.read() as session:
        model = _model(services, session, request.model)
        definition = _definition(session, model)
        structure = services.structures.find(session, model)
    question = {"encode": request.for_template, "add_special_tokens": request.add_special_tokens}
    try:
        tokens = counter_process.run(question, definition)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        log.warning("a text cannot be tokenized for %s: %s", model, error)
        raise TokenizerFailed(f"the text could not be tokenized ({type(error).__name__})") from error
    if tokens is None:
        raise InvalidRequest(
            "the model's chat template refuses the messages, or there is none", param="messages"
        )
    return Tokenized(
        count=len(tokens),
        max_model_len=None if structure is None else structure.context_length,
        tokens=tokens,
        token_strs=_texts(tokens, definition) if request.return_token_strs else None,
    )


@router.add("POST", "/v1/detokenize", READ, "Text of tokens", body=IDS, alias="/detokenize", lane="reads")
def detokenize(services: ServicesDep, body: JsonBody) -> Detokenized:
    """The text of token ids, special tokens included.

    404: no worker has loaded the model yet.
    """
    request = parse_body(DetokenizeRequest, body)
    with services.database.read() as session:
        model = _model(services, session, request.model)
        definition = _definition(session, model)
        structure = services.structures.find(session, model)
    size = structure.vocab_size if structure is not None else max(request.tokens, default=0) + 1
    for place, token in enumerate(request.tokens):
        if token >= size:
            raise InvalidRequest(
                f"token {token}: {model} has tokens 0 to {size - 1}", param=f"tokens.{place}"
            )
    return Detokenized(prompt="".join(_texts(request.tokens, definition)))


def _model(services: Services, session: Session, name: str | None) -> str:
    """Raises UnknownModel, NotFound."""
    if name is not None:
        return services.models.require(name)
    found = workers.model_loaded_last(session) or services.models.default
    if found is None:
        raise NotFound("no model is served; set ACTOGRAPH_MODEL or ACTOGRAPH_ALLOWED_MODELS")
    return found


def _definition(session: Session, model: str) -> bytes:
    found = model_tokenizers.definition(session, model)
    if found is None:
        raise NotFound(f"no worker has stored the tokenizer of {model}; load the model first")
    return found


def _texts(ids: list[int], definition: bytes) -> list[str]:
    try:
        return token_texts.of_ids(ids, definition)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        log.warning("tokens cannot be spelled: %s", error)
        raise TokenizerFailed(f"the tokens could not be spelled ({type(error).__name__})") from error
