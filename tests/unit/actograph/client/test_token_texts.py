"""Tokens as text: of a session, of a span, of a matrix's rows."""

from typing import Any

import numpy as np
import pytest

from actograph.client import Client
from actograph.client.matrix.token_spans import tokens_of_text
from actograph.contract import resources
from actograph.contract.errors import InvalidRequest, NotFound

HOOK = "resid_post.1"
TEXTS = ["<s>", "Q", ": 1+1", "=", "?", " 1+1=2 ##", "## ", "2"]


@pytest.fixture(autouse=True)
def spelled(service: Any) -> None:
    service.texts = TEXTS


@pytest.mark.parametrize(
    ("text", "occurrence", "tokens"),
    [
        ("1+1", 0, [2]), ("1+1", 1, [5]), ("1+1", -1, [5]), ("####", 0, [5, 6]), ("=?", 0, [3, 4]),
        ("<s>Q", 0, [0, 1]), ("2", -1, [7]), (" 2", 0, [6, 7]),
    ],
)  # fmt: skip
def test_the_tokens_of_a_text(text: str, occurrence: int, tokens: list[int]) -> None:
    assert list(tokens_of_text(TEXTS, text, occurrence)) == tokens


def test_tokens_without_a_text_of_their_own_belong_to_the_next() -> None:
    assert list(tokens_of_text(["a", "", "\u00e9", "b"], "\u00e9")) == [2]
    assert list(tokens_of_text(["a", "", "\u00e9", "b"], "ab"[:1])) == [0]


def test_a_text_that_does_not_occur() -> None:
    with pytest.raises(NotFound, match="0 occurrences of 'x'"):
        tokens_of_text(TEXTS, "x")
    with pytest.raises(NotFound, match="2 occurrences"):
        tokens_of_text(TEXTS, "1+1", 2)
    with pytest.raises(InvalidRequest, match="empty"):
        tokens_of_text(TEXTS, "")


def test_rows_of_a_text(service: Any, plain: Client, session: resources.Session) -> None:
    found = plain.sessions.get(session.id)
    assert found.tokens() == TEXTS
    rows = found[HOOK][found.at("####")]
    assert np.array_equal(rows, found[HOOK][5:7])
    assert found.at("## 2").tolist() == [6], "the last token has no row"
    assert found.at("=?", "mlp_in.1").tolist() == [1], "the tensor has the tokens 0, 4 and 6"
    with pytest.raises(NotFound, match=r"no row of mlp_in\.1"):
        found.at("Q", "mlp_in.1")
    service.texts = None
    with pytest.raises(NotFound, match="no tokenizer is stored"):
        found.tokens()


def test_texts_of_a_matrix(plain: Client, sessions: list[resources.Session]) -> None:
    job = sessions[0].job_id
    matrix = plain.jobs.matrix(job, HOOK, rows="generated", texts=True, limit=2)
    assert matrix.texts is not None
    assert matrix.texts.tolist() == [" 1+1=2 ##", "## "] * 2
    assert matrix.frame()["text"].tolist() == matrix.texts.tolist()
    summary = plain.jobs.matrix(job, HOOK, rows="mean", texts=True, limit=1)
    assert summary.texts is not None
    assert summary.texts.tolist() == [""]
    assert plain.jobs.matrix(job, HOOK).texts is None
