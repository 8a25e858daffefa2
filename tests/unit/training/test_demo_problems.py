"""The generator of word problems, and the problems that are shipped."""

import random
import re
from itertools import islice
from pathlib import Path

import pytest

from actograph.datasets.dataset_rows import read_rows
from actograph.demo import MODEL_DIR, PROBLEMS
from training.demo_lessons import batches
from training.demo_problems import (
    ADDITIONS,
    SUBTRACTIONS,
    TWO_STEPS,
    Problem,
    Step,
    as_jsonl,
    held_out_pairs,
    held_out_problems,
    problems,
)

EQUATION = re.compile(r"^(\d+)([+-])(\d+)=(\d+)$", re.MULTILINE)


def made(seed: int, count: int, *, held_out: bool) -> list[Problem]:
    return list(islice(problems(random.Random(seed), held_out=held_out), count))


def equations(text: str) -> list[tuple[int, str, int, int]]:
    return [(int(a), sign, int(b), int(result)) for a, sign, b, result in EQUATION.findall(text)]


def test_shipped_problems_are_what_the_generator_makes() -> None:
    assert PROBLEMS.read_text(encoding="utf-8") == as_jsonl(held_out_problems())


def test_shipped_problems_are_a_dataset_of_200_different_questions() -> None:
    with PROBLEMS.open("rb") as stream:
        rows = read_rows(stream)
    assert len({row.question for row in rows}) == len(rows) == 200


def test_shipped_answers_are_right() -> None:
    with PROBLEMS.open("rb") as stream:
        rows = read_rows(stream)
    for row in rows:
        steps = equations(row.answer)
        for left, sign, right, result in steps:
            assert result == (left + right if sign == "+" else left - right)
        assert row.answer.endswith(f"\n#### {steps[-1][3]}")
        # What is asked and what is worked out are the same numbers.
        given = [int(number) for number in re.findall(r"\d+", row.question)]
        used = [steps[0][0], steps[0][2]] + [step[2] for step in steps[1:]]
        assert given == used


def test_no_training_text_holds_a_pair_of_operands_that_is_held_out() -> None:
    with PROBLEMS.open("rb") as stream:
        shipped = {
            frozenset((left, right))
            for row in read_rows(stream)
            for left, _, right, _ in equations(row.answer)
        }
    assert shipped <= {frozenset(pair) for pair in held_out_pairs()}
    stream_of_batches = batches(random.Random(0), lambda messages, thinks: str(messages))
    trained = {
        frozenset((left, right))
        for batch in islice(stream_of_batches, 300)
        for lesson in batch
        for left, _, right, _ in equations(f"{lesson.prompt}\n{lesson.completion}".replace("\\n", "\n"))
    }
    assert len(trained) > 3000
    assert trained.isdisjoint(shipped)
    assert trained.isdisjoint(frozenset(pair) for pair in held_out_pairs())


def test_a_tenth_of_all_pairs_is_held_out() -> None:
    assert len(held_out_pairs()) == 4095 // 10
    assert all(10 <= low <= high <= 99 for low, high in held_out_pairs())


def test_the_same_seed_gives_the_same_problems() -> None:
    assert made(3, 50, held_out=False) == made(3, 50, held_out=False)
    assert made(3, 50, held_out=False) != made(4, 50, held_out=False)


def test_every_form_occurs_and_all_numbers_stay_in_range() -> None:
    found = made(0, 3000, held_out=False)
    assert {len(problem.steps) for problem in found} == {1, 2}
    for problem in found:
        assert all(10 <= number <= 99 for step in problem.steps for number in step.pair)
        assert all(step.result >= 0 for step in problem.steps)
    openings = {form.split("{a}")[0].split("}")[-1] for form in (*ADDITIONS, *SUBTRACTIONS, *TWO_STEPS)}
    assert all(any(opening in problem.question for problem in found) for opening in openings)


def test_working(subtests: pytest.Subtests) -> None:
    for step, working, equation in [
        (Step(sign="+", left=37, right=48), "7+8=15, 3+4+1=8", "37+48=85"),
        (Step(sign="+", left=90, right=99), "0+9=9, 9+9+0=18", "90+99=189"),
        (Step(sign="-", left=62, right=38), "12-8=4, 6-3-1=2", "62-38=24"),
        (Step(sign="-", left=68, right=32), "8-2=6, 6-3-0=3", "68-32=36"),
    ]:
        with subtests.test(step=step, working=working, equation=equation):
            assert (step.working, step.equation) == (working, equation)


def test_the_model_folder_is_small_and_names_no_machine() -> None:
    names = {path.name for path in MODEL_DIR.iterdir()}
    assert names >= {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "train_report.json",
    }
    files = [path for path in MODEL_DIR.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 2_000_000
    for path in files:
        content = path.read_bytes()
        for part in (b"/home/", b"/tmp/", b"/work", b"/root", str(Path.home()).encode() + b"/"):
            assert part not in content, f"{path.name} names {part!r}"
