"""/v1/tokenize and /v1/detokenize: the tokens of the model's own tokenizer and chat template."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from transformers import AutoTokenizer

from actograph.client import Client
from storage.queue import model_tokenizers
from worker.text import chat_template

if TYPE_CHECKING:
    from tests.integration.api.conftest import Problem, Service

pytestmark = pytest.mark.integration

TEXT = "Tom has 3 apples – how many? <|im_end|>"
MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2 + 2?"}]


@pytest.fixture
def tokenizer(service: "Service", shared: Path) -> Any:
    """The tokenizer of a loaded model, as its worker stores it."""
    found = AutoTokenizer.from_pretrained(shared / "models" / "tiny-qwen3")
    service.load_model(vocab_size=len(found))
    definition = chat_template.exported(found)
    assert definition is not None
    with service.database.write() as session:
        model_tokenizers.keep(session, "demo", definition)
    return found


@pytest.mark.parametrize("path", ["/v1/tokenize", "/tokenize"])
def test_a_text_has_the_tokens_of_its_tokenizer(service: "Service", tokenizer: Any, path: str) -> None:
    answer = service.client.post(path, json={"prompt": TEXT, "return_token_strs": True}).json()
    assert answer["tokens"] == tokenizer.encode(TEXT)
    assert (answer["count"], answer["max_model_len"]) == (len(answer["tokens"]), 1024)
    assert "".join(answer["token_strs"]) == TEXT
    back = service.client.post(path.replace("tok", "detok"), json={"tokens": answer["tokens"]}).json()
    assert back == {"prompt": TEXT}


def test_a_conversation_is_rendered(service: "Service", tokenizer: Any, url: str) -> None:
    for begun in (True, False):
        body = {"messages": MESSAGES, "add_generation_prompt": begun}
        answer = service.client.post("/v1/tokenize", json=body).json()
        text = tokenizer.apply_chat_template(
            MESSAGES, tokenize=False, add_generation_prompt=begun, enable_thinking=False
        )
        assert answer["tokens"] == tokenizer.encode(text)
        assert answer["token_strs"] is None
    with Client(url) as client:
        tokens = client.models.tokenize(MESSAGES, texts=True, add_generation_prompt=False)
        assert tokens.tokens == answer["tokens"]
        assert client.models.detokenize(tokens.tokens, "demo") == text == "".join(tokens.token_strs or [])


def test_bad_requests_are_refused(service: "Service", tokenizer: Any, problem: "Problem") -> None:
    post = service.client.post
    problem(post("/v1/tokenize", json={}), 422, says="either prompt or messages")
    problem(post("/v1/tokenize", json={"prompt": "a", "messages": MESSAGES}), 422)
    problem(post("/v1/tokenize", json={"prompt": "a", "model": "none"}), 422, "model_not_found")
    problem(post("/v1/detokenize", json={"tokens": [1, 10**8]}), 422, "invalid_request", "/tokens/1")
    with service.database.write() as session:
        model_tokenizers.keep(
            session, "demo", {"tokenizer": "{}", "special_tokens": {}, "chat_template": None}
        )
    problem(post("/v1/tokenize", json={"prompt": "a"}), 500, says="could not be tokenized")


def test_a_model_that_was_never_loaded_has_no_tokens(service: "Service", problem: "Problem") -> None:
    for path, body in (("/v1/tokenize", {"prompt": "a"}), ("/v1/detokenize", {"tokens": [1]})):
        problem(service.client.post(path, json=body), 404, "not_found", says="load the model first")
