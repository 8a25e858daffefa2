"""The API's count of prompts, against the tokens that the worker makes of them."""

import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from api.submission import token_counter
from api.submission.token_counter import PromptCounter
from worker.text.chat_template import encode_prompt, exported, render_chat

TURNS = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "one and two?  <think>\n"},
    {"role": "assistant", "content": "three"},
    {"role": "user", "content": "ünd nun — vier?"},
]


@pytest.fixture(scope="module", params=["tiny-qwen3", "stories260k"])
def tokenizer(request: pytest.FixtureRequest, shared: Path) -> PreTrainedTokenizerBase:
    folder = shared / "models" / request.param
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    made: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    return made


def test_every_prompt_has_as_many_tokens_as_the_worker_makes(tokenizer: PreTrainedTokenizerBase) -> None:
    definition = exported(tokenizer)
    assert definition is not None
    texts = ["one and two", "a\n\n  b", f"{tokenizer.bos_token or ''}begun"]
    prompts: list[dict[str, Any]] = [{"text": text} for text in texts]
    expected = [len(encode_prompt(tokenizer, text, is_chat=False)) for text in texts]
    for enable_thinking in (False, True) if definition["chat_template"] else ():
        for turns in (TURNS[1:2], TURNS[1:]):
            prompts.append(
                {"messages": turns, "enable_thinking": enable_thinking, "add_generation_prompt": True}
            )
            rendered = render_chat(tokenizer, turns, enable_thinking=enable_thinking)
            expected.append(len(encode_prompt(tokenizer, rendered, is_chat=True)))
    assert PromptCounter(json.loads(json.dumps(definition))).count(prompts) == expected


def test_it_runs_by_itself_with_nothing_of_ours(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    definition = zlib.compress(json.dumps(exported(tokenizer)).encode())
    ended = subprocess.run(
        [sys.executable, "-P", "-s", token_counter.__file__],
        input=json.dumps([{"text": "one and two"}, {"messages": "none"}]).encode() + b"\n" + definition,
        capture_output=True,
        check=True,
        env={},
        cwd=tmp_path,
    )
    count, _ = json.loads(ended.stdout)
    assert count == len(encode_prompt(tokenizer, "one and two", is_chat=False))
