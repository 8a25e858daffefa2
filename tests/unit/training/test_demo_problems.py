"""The generator of word problems, and the problems that are shipped."""

import random
import re
from itertools import islice
from pathlib import Path

from actograph.demo import MODEL_DIR, PROBLEMS
from evals.dataset_rows import read_rows
from training.demo_lessons import batches, thought_answer
from training.demo_problems import Problem, Step, as_jsonl, held_out_pairs, held_out_problems

EQUATION = re.compile(r"^(\d+)([+-])(\d+)=(\d+)$", re.MULTILINE)


def equations(text: str) -> list[tuple[int, str, int, int]]:
    return [(int(a), sign, int(b), int(result)) for a, sign, b, result in EQUATION.findall(text)]


def test_shipped_problems_are_what_the_generator_makes() -> None:
    assert PROBLEMS.read_text(encoding="utf-8") == as_jsonl(held_out_problems())


def test_shipped_answers_are_right() -> None:
    with PROBLEMS.open("rb") as stream:
        rows = read_rows(stream)
    assert len({row.question for row in rows}) == len(rows) == 200
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


SUM = Problem(question="How many?", steps=(Step(sign="+", left=37, right=48),))
TWO_STEPS = Problem(question="How many?", steps=(*SUM.steps, Step(sign="-", left=85, right=19)))


def test_answers_show_their_working_and_end_as_gsm8k_does_and_thoughts_hold_it() -> None:
    assert SUM.answer == "7+8=15, 3+4+1=8\n37+48=85\n#### 85"
    assert TWO_STEPS.answer == "7+8=15, 3+4+1=8\n37+48=85\n15-9=6, 8-1-1=6\n85-19=66\n#### 66"
    assert thought_answer(TWO_STEPS) == (
        "<think>\n7+8=15, 3+4+1=8\n15-9=6, 8-1-1=6\n</think>\n\n37+48=85\n85-19=66\n#### 66"
    )


def test_the_model_folder_is_small_and_names_no_machine() -> None:
    files = [path for path in MODEL_DIR.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 2_000_000
    for path in files:
        content = path.read_bytes()
        for part in (b"/home/", b"/tmp/", b"/work", b"/root", str(Path.home()).encode() + b"/"):
            assert part not in content, f"{path.name} names {part!r}"
