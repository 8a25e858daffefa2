"""Chat clients: the openai package's, many in one process, each asking again as soon as it was answered."""

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import openai

#: marks that the service shows; some tokenizers count them among the special tokens, others do not
_MARKS = re.compile(r"</?(think|tool_call|tool_response)>")
#: so long a client waits for one answer
TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One chat as its client saw it."""

    number: int
    text: str
    completion_tokens: int
    session_id: str | None
    sent_at: float
    seconds: float
    #: up to the first text of a stream; None where it was none
    first_text_seconds: float | None


@dataclass
class Answers:
    """Outcomes of the requests; may be read from another thread while they run."""

    answers: list[Answer] = field(default_factory=list)
    #: what went wrong, by its words
    errors: dict[str, int] = field(default_factory=dict)
    wall_seconds: float = 0.0

    @property
    def done(self) -> int:
        return len(self.answers)


def question(number: int) -> str:
    """Each chat's own, by which its tokens are told from another's."""
    return f"Tom has {number} apples and buys {number + 1} more. How many?"


def most_tokens(number: int) -> int:
    """Lengths from 8 to 47, so that the samples of a batch end at different steps."""
    return 8 + number % 40


@dataclass(frozen=True, kw_only=True)
class Load:
    """Requests of the clients of one process, and the handling of the answers."""

    url: str
    model: str
    #: at once
    clients: int
    chats: int
    #: further fields of each request
    extra: Mapping[str, Any]
    #: number of the first chat
    first: int = 0
    #: called with each answer, in a thread
    check: Callable[[Answer], None] = lambda answer: None
    #: asked before each request; True ends the clients early
    stop: Callable[[], bool] = lambda: False


def run(load: Load, into: Answers | None = None) -> Answers:
    """Send the requests, every other one as a stream. `into` is filled while they run."""
    found = into if into is not None else Answers()
    began = time.perf_counter()
    asyncio.run(_run(load, found))
    found.wall_seconds = time.perf_counter() - began
    return found


async def _run(load: Load, found: Answers) -> None:
    left = iter(range(load.first, load.first + load.chats))

    async def work() -> None:
        # a connection pool of its own, as a client of its own has
        async with openai.AsyncOpenAI(
            base_url=f"{load.url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_SECONDS
        ) as client:
            for number in left:
                if load.stop():
                    return
                try:
                    answer = await _ask(client, load.model, number, load.extra)
                except openai.OpenAIError as error:
                    words = f"{type(error).__name__}: {error}"[:200]
                    found.errors[words] = found.errors.get(words, 0) + 1
                    continue
                await asyncio.to_thread(load.check, answer)
                found.answers.append(answer)

    await asyncio.gather(*(work() for _ in range(load.clients)))


async def _ask(client: openai.AsyncOpenAI, model: str, number: int, extra: Mapping[str, Any]) -> Answer:
    options: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": question(number)}],
        "max_tokens": most_tokens(number),
        "temperature": 1.0,
        "seed": number,
        "extra_body": dict(extra),
    }
    sent_at, began = time.time(), time.perf_counter()
    if number % 2 == 0:
        whole = await client.chat.completions.create(**options)
        text, used, last = whole.choices[0].message.content or "", whole.usage, whole
        first_text = None
    else:
        text, used, last, first_text = "", None, None, None
        stream = await client.chat.completions.create(
            stream=True, stream_options={"include_usage": True}, **options
        )
        async for chunk in stream:
            for choice in chunk.choices:
                if choice.delta.content:
                    first_text = first_text or time.perf_counter() - began
                    text += choice.delta.content
                last = chunk
            used = chunk.usage or used
    return Answer(
        number=number,
        text=text,
        completion_tokens=used.completion_tokens if used else 0,
        session_id=((last.model_extra or {}) if last is not None else {}).get("session_id"),
        sent_at=sent_at,
        seconds=time.perf_counter() - began,
        first_text_seconds=first_text,
    )


class TokenCheck:
    """Compares each answer with the token ids of its session; call it with answers from any thread.

    `mixed` counts answers whose session is another's or does not hold what was said.
    """

    def __init__(self, token_ids: Callable[[str], list[int]], decode: Callable[[list[int]], str]) -> None:
        """
        Args:
            token_ids: of a stored session, prompt and answer.
            decode: without special tokens.
        """
        self._token_ids = token_ids
        self._decode = decode
        self._seen: set[str] = set()
        self.mixed: list[str] = []

    def __call__(self, answer: Answer) -> None:
        if answer.session_id is None or answer.session_id in self._seen:
            self.mixed.append(f"chat {answer.number}: no session of its own")
            return
        self._seen.add(answer.session_id)
        ids = self._token_ids(answer.session_id)
        cut = len(ids) - answer.completion_tokens
        said, asked = self._decode(ids[cut:]), self._decode(ids[:cut])
        if question(answer.number) not in asked or _MARKS.sub("", said) != _MARKS.sub("", answer.text):
            self.mixed.append(
                f"chat {answer.number}: its session holds {asked!r} and {said!r}, "
                f"and it was told {answer.text!r}"
            )

    @property
    def checked(self) -> int:
        return len(self._seen)
