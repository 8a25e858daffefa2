"""What the calculator puts in, in the tokens of tokenizers that begin a text differently."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from actograph.contract.errors import InvalidRequest
from actograph.contract.job_specs import EvaluationSpec
from worker.runners import text
from worker.runners.annotation_turns import AnnotationTurns
from worker.runners.runner import FurtherTurn

PROMPT = "Question: how many?\nAnswer:"


def turns_of(tokenizer: Any, **changes: Any) -> AnnotationTurns:
    body = {"kind": "evaluation", "model": "m", "dataset": {"path": "a.jsonl"}, "tools": "calculator"}
    spec = EvaluationSpec.model_validate(body | {"tool_format": "annotations"} | changes)
    return AnnotationTurns(spec, tokenizer)


@pytest.fixture(params=["tiny-qwen3", "stories260k"])
def tokenizer(request: pytest.FixtureRequest, shared: Path) -> Any:
    return AutoTokenizer.from_pretrained(shared / "models" / request.param)


def test_the_text_goes_on_as_it_would_have_been_tokenised(tokenizer: Any, subtests: pytest.Subtests) -> None:
    for said, put_in in [
        ("She sold 48/2 = <<48/2=", "24>>"),
        ("<<-7*2=", "-14>>"),
        ("so\n<<10/3=", "3.33333333333>>"),
        ("<<12.5*1,000=", "12500>>"),
    ]:
        with subtests.test(said=said, put_in=put_in):
            prompt = text.encode(tokenizer, PROMPT, is_chat=False)
            turn = tokenizer.encode(said, add_special_tokens=False)
            further = turns_of(tokenizer).further(PROMPT, [turn], [])
            assert isinstance(further, FurtherTurn)
            ids = list(further.prompt.token_ids)
            assert ids[: further.results_from] == [*prompt.token_ids, *turn]
            assert ids[len(prompt.token_ids) :] == tokenizer.encode(said + put_in, add_special_tokens=False)
            assert further.prompt.max_tokens == 512 - (len(ids) - len(prompt.token_ids))


def test_a_tokenizer_that_cannot_write_a_result_is_told(tokenizer: Any) -> None:
    class Deaf:
        """A tokenizer that has no digits."""

        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

        def encode(self, piece: str, **options: Any) -> Any:
            return tokenizer.encode(piece.translate(dict.fromkeys(range(48, 58))), **options)

    turn = tokenizer.encode("<<48/2=", add_special_tokens=False)
    with pytest.raises(InvalidRequest, match="cannot write '24>>' behind an equals sign"):
        turns_of(Deaf()).further(PROMPT, [turn], [])
