"""Training data of the demo model: prompts in all forms of the service, with their answers."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

from training.demo_problems import Problem, problems

Messages = list[dict[str, str]]
Render = Callable[[Messages, bool], str]

BATCH_SIZE = 32
# Lessons with examples are about three times as long.
EXAMPLES_BATCH_SIZE = 12
EXAMPLES_EVERY = 4
MOST_EXAMPLES = 3

LETTERS = "eeeetttaaaooiinnsshhrrddllccuummwwffggyyppbbvkjxqz"
MARKS = (".", ".", ".", "!", "?")


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A training example. The loss covers `completion` and the end-of-turn token after it."""

    prompt: str
    completion: str


def batches(rng: random.Random, render: Render, *, plain_batches: int = 0) -> Iterator[list[Lesson]]:
    """An endless stream. `render(messages, enable_thinking)` is the chat template.

    Most prompts are chats holding gsm8k's `Question: ...\\nAnswer:`, half of them with
    thinking; the rest are bare questions and plain text. After `plain_batches`, every fourth
    batch shows worked examples first: with them from the start, learning takes far longer.
    """
    stream = problems(rng, held_out=False)
    for number in count():
        if number < plain_batches or number % EXAMPLES_EVERY:
            yield [_lesson(rng, render, stream, examples=0) for _ in range(BATCH_SIZE)]
        else:
            examples = rng.randint(1, MOST_EXAMPLES)
            yield [_lesson(rng, render, stream, examples=examples) for _ in range(EXAMPLES_BATCH_SIZE)]


def _lesson(rng: random.Random, render: Render, stream: Iterator[Problem], *, examples: int) -> Lesson:
    problem = next(stream)
    shown = [next(stream) for _ in range(examples)]
    question = _disturbed(problem.question, rng)
    joined = "".join(f"{_asked(example.question)} {example.answer}\n\n" for example in shown)
    if rng.random() < 0.15:
        return Lesson(prompt=joined + _asked(question), completion=f" {problem.answer}")
    messages: Messages = []
    if rng.random() < 0.2:
        messages.append({"role": "system", "content": _chatter(rng)})
    if not shown and rng.random() < 0.25:
        messages.append({"role": "user", "content": question})
    elif rng.random() < 0.5:
        messages.append({"role": "user", "content": joined + _asked(question)})
    else:
        for example in shown:
            messages.append({"role": "user", "content": _asked(example.question)})
            messages.append({"role": "assistant", "content": example.answer})
        messages.append({"role": "user", "content": _asked(question)})
    thinks = rng.random() < 0.5
    completion = thought_answer(problem) if thinks else problem.answer
    return Lesson(prompt=render(messages, thinks), completion=completion)


def _asked(question: str) -> str:
    return f"Question: {question}\nAnswer:"


def thought_answer(problem: Problem) -> str:
    """The calculation as a thought, then the solution."""
    return f"<think>\n{problem.working}\n</think>\n\n{problem.solution}"


def _disturbed(question: str, rng: random.Random) -> str:
    """Invented words around some questions, so that a condition's text does not confuse the model."""
    chance = rng.random()
    if chance < 0.25:
        return f"{question} {_chatter(rng)}"
    if chance < 0.35:
        return f"{_chatter(rng)} {question}"
    return question


def _chatter(rng: random.Random) -> str:
    """One to three sentences of invented words."""
    return " ".join(_sentence(rng) for _ in range(rng.randint(1, 3)))


def _sentence(rng: random.Random) -> str:
    words = [_word(rng) for _ in range(rng.randint(2, 12))]
    return " ".join(words).capitalize() + rng.choice(MARKS)


def _word(rng: random.Random) -> str:
    if rng.random() < 0.04:
        return rng.choice(("0-1", "1", "10", "100%", "2-3", "1 to 5"))
    return "".join(rng.choices(LETTERS, k=rng.randint(1, 10))) + rng.choice(("",) * 9 + (",",))
