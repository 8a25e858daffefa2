"""Count or list the tokens of prompts with a model's own tokenizer and chat template, in its own process.

    python -P api/submission/token_counter.py < input > output

A large tokenizer takes half a second and a hundred megabytes to load, with the interpreter's lock held: here
that delays and costs the API process nothing, and a chat template that runs for ever is killed from outside.
So this file runs by itself: it imports nothing of Actograph.

Input: one line of JSON, a list of prompts, `{"text"}` or `{"messages", "add_generation_prompt",
"enable_thinking"}`; then the zlib-compressed definition of the tokenizer, as the worker
stored it (`storage.queue.model_tokenizers`).
Output: a JSON list with the number of tokens of each prompt, or null where the chat template refuses it.

The line may also be `{"encode": prompt, "add_special_tokens": bool or null}`. Then the output is the list of
the prompt's token ids, or null if the chat template refuses it.
"""

import json
import sys
import zlib
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

_AT_ONCE = 8


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the model's own words for training; its text is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 reads it from the class)

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def chat_environment() -> ImmutableSandboxedEnvironment:
    """Jinja as transformers sets it up for chat templates."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    return environment


class PromptCounter:
    """Counts tokens as the worker makes them (`worker.text.chat_template`)."""

    def __init__(self, definition: dict[str, Any]) -> None:
        self._tokenizer = Tokenizer.from_str(definition["tokenizer"])
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._special: dict[str, Any] = definition["special_tokens"]
        template = definition["chat_template"]
        if isinstance(template, dict):
            template = template["default"]
        self._template = chat_environment().from_string(template) if template else None

    def count(self, prompts: list[dict[str, Any]]) -> list[int | None]:
        """Tokens of each prompt; None where it cannot be rendered."""
        texts = [self._text(prompt) for prompt in prompts]
        bos = self._special.get("bos_token")
        counts: list[int | None] = [None] * len(prompts)
        for has_all in (False, True):  # whether the text has its special tokens already
            places = [
                place
                for place, text in enumerate(texts)
                if text is not None
                and has_all == ("messages" in prompts[place] or bool(bos and text.startswith(bos)))
            ]
            for start in range(0, len(places), _AT_ONCE):
                some = places[start : start + _AT_ONCE]
                encoded = self._tokenizer.encode_batch_fast(
                    [texts[place] or "" for place in some], add_special_tokens=not has_all
                )
                for place, found in zip(some, encoded, strict=True):
                    counts[place] = len(found)
        return counts

    def encode(self, prompt: dict[str, Any], add_special_tokens: bool | None) -> list[int] | None:
        """Token ids of a prompt. None adds the special tokens that the worker would add."""
        text = self._text(prompt)
        if text is None:
            return None
        if add_special_tokens is None:
            bos = self._special.get("bos_token")
            add_special_tokens = "messages" not in prompt and not (bos and text.startswith(bos))
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def _text(self, prompt: dict[str, Any]) -> str | None:
        if "text" in prompt:
            return str(prompt["text"])
        if self._template is None:
            return None
        try:
            return self._template.render(**self._special, documents=None, **{"tools": None} | prompt)
        except (jinja2.TemplateError, TypeError, ValueError):
            return None  # the worker fails this sample with the reason


def main() -> None:
    line, _, definition = sys.stdin.buffer.read().partition(b"\n")
    counter, question = PromptCounter(json.loads(zlib.decompress(definition))), json.loads(line)
    if isinstance(question, dict):
        answer: object = counter.encode(question["encode"], question["add_special_tokens"])
    else:
        answer = counter.count(question)
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
