"""Word problems in GSM8K's form, made from a seed: two-digit addition and subtraction, one or two steps.

A tenth of all pairs of operands is held out: no training problem adds or subtracts such a pair,
in either order, and every step of a held-out problem does.

    python -m training.demo_problems OUT.jsonl
"""

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Literal

HELD_OUT_SEED = 20240229
PROBLEMS_SEED = 7
PROBLEMS_COUNT = 200

Pair = tuple[int, int]

NAMES = (
    "Ada",
    "Bruno",
    "Chloe",
    "Dmitri",
    "Esther",
    "Farid",
    "Greta",
    "Hugo",
    "Ines",
    "Jonas",
    "Kirra",
    "Luan",
)
THINGS = (
    "marbles",
    "tickets",
    "lemons",
    "buttons",
    "postcards",
    "candles",
    "pebbles",
    "badges",
    "seeds",
    "ribbons",
)

ADDITIONS = (
    "{name} keeps {a} {things} on a shelf and {b} {things} in a drawer. How many {things} does {name} keep?",
    "A market stall sold {a} {things} before noon and {b} {things} after noon. How many did it sell?",
    "{name} had {a} {things}. Then {friend} handed over {b} more. How many {things} does {name} have now?",
    "There are {a} {things} in the red box. The blue box holds {b}. How many {things} are in both?",
    "On Friday {name} counted {a} {things}, and on Saturday {b} more. How many {things} is that?",
)
SUBTRACTIONS = (
    "{name} had {a} {things} and lost {b} of them. How many {things} are left?",
    "A crate holds {a} {things}. {name} takes out {b}. How many {things} stay in the crate?",
    "{name} has {a} {things} and {friend} has {b}. How many more {things} does {name} have?",
    "The school ordered {a} {things}, and {b} have arrived. How many {things} are still on the way?",
    "{name} baked for a fair and needs {a} {things}. {b} are ready. How many {things} are missing?",
)
TWO_STEPS = (
    "{name} had {a} {things}, found {b} more and gave {c} to {friend}. How many {things} are left?",
    "A shop got {a} {things} on Monday and {b} on Tuesday, and sold {c}. How many {things} does it have now?",
    "{name} collected {a} {things} and {friend} {b}. They gave away {c}. How many {things} remain?",
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """A calculation; in a subtraction the larger operand comes first."""

    sign: Literal["+", "-"]
    left: int
    right: int

    @property
    def result(self) -> int:
        return self.left + self.right if self.sign == "+" else self.left - self.right

    @property
    def pair(self) -> Pair:
        return (min(self.left, self.right), max(self.left, self.right))

    @property
    def equation(self) -> str:
        return f"{self.left}{self.sign}{self.right}={self.result}"

    @property
    def working(self) -> str:
        """The ones, then the tens with the carried or borrowed digit."""
        left_tens, left_ones = divmod(self.left, 10)
        right_tens, right_ones = divmod(self.right, 10)
        if self.sign == "+":
            ones = left_ones + right_ones
            carry = ones // 10
            tens = left_tens + right_tens + carry
            return f"{left_ones}+{right_ones}={ones}, {left_tens}+{right_tens}+{carry}={tens}"
        borrow = int(left_ones < right_ones)
        top = left_ones + 10 * borrow
        tens = left_tens - right_tens - borrow
        return f"{top}-{right_ones}={top - right_ones}, {left_tens}-{right_tens}-{borrow}={tens}"


@dataclass(frozen=True, kw_only=True)
class Problem:
    question: str
    steps: tuple[Step, ...]

    @property
    def working(self) -> str:
        """The digits of every step, one line each."""
        return "\n".join(step.working for step in self.steps)

    @property
    def solution(self) -> str:
        """The equation of every step, then the answer as GSM8K writes it."""
        return "\n".join([*(step.equation for step in self.steps), f"#### {self.steps[-1].result}"])

    @property
    def answer(self) -> str:
        return "\n".join(f"{step.working}\n{step.equation}" for step in self.steps) + (
            f"\n#### {self.steps[-1].result}"
        )


@cache
def held_out_pairs() -> frozenset[Pair]:
    """A tenth of all pairs (smaller number first, 10 to 99), which training never uses."""
    pairs = [(low, high) for low in range(10, 100) for high in range(low, 100)]
    random.Random(HELD_OUT_SEED).shuffle(pairs)
    return frozenset(pairs[: len(pairs) // 10])


def problems(rng: random.Random, *, held_out: bool) -> Iterator[Problem]:
    """An endless stream of problems, either with held-out steps only or without any."""
    while True:
        steps, forms = _steps(rng)
        if all((step.pair in held_out_pairs()) is held_out for step in steps):
            name, friend = rng.sample(NAMES, 2)
            numbers = {"a": steps[0].left, "b": steps[0].right, "c": steps[-1].right}
            text = rng.choice(forms).format(name=name, friend=friend, things=rng.choice(THINGS), **numbers)
            yield Problem(question=text, steps=steps)


def _steps(rng: random.Random) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    kind = rng.choice(("addition", "subtraction", "two steps"))
    left, right = rng.randint(10, 99), rng.randint(10, 99)
    if kind == "addition":
        return (Step(sign="+", left=left, right=right),), ADDITIONS
    if kind == "subtraction":
        return (Step(sign="-", left=max(left, right), right=min(left, right)),), SUBTRACTIONS
    # The sum stays below 100, and something may be taken from it.
    left = rng.randint(10, 80)
    right = rng.randint(10, 99 - left)
    taken = rng.randint(10, left + right)
    return (Step(sign="+", left=left, right=right), Step(sign="-", left=left + right, right=taken)), TWO_STEPS


def held_out_problems(count: int = PROBLEMS_COUNT, seed: int = PROBLEMS_SEED) -> list[Problem]:
    """`count` different held-out problems; the defaults give those of problems.jsonl."""
    stream = problems(random.Random(seed), held_out=True)
    found: dict[str, Problem] = {}
    while len(found) < count:
        for problem in islice(stream, count - len(found)):
            found[problem.question] = problem
    return list(found.values())


def as_jsonl(rows: list[Problem]) -> str:
    return "".join(
        json.dumps({"question": row.question, "answer": row.answer}, ensure_ascii=False) + "\n"
        for row in rows
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m training.demo_problems OUT.jsonl")
    Path(sys.argv[1]).write_text(as_jsonl(held_out_problems()), encoding="utf-8")
