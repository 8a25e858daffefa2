"""What the demo model is taught."""

import random
from itertools import islice

from training.demo_lessons import (
    BATCH_SIZE,
    EXAMPLES_BATCH_SIZE,
    EXAMPLES_EVERY,
    Lesson,
    Messages,
    batches,
    thought_answer,
)
from training.demo_problems import Problem, Step

SUM = Problem(question="How many?", steps=(Step(sign="+", left=37, right=48),))
TWO_STEPS = Problem(question="How many?", steps=(*SUM.steps, Step(sign="-", left=85, right=19)))


def render(messages: Messages, enable_thinking: bool) -> str:
    turns = "".join(f"[{message['role']}]{message['content']}" for message in messages)
    return f"{turns}[{'think' if enable_thinking else 'answer'}]"


def taught(count: int, *, plain_batches: int = 0) -> list[list[Lesson]]:
    return list(islice(batches(random.Random(0), render, plain_batches=plain_batches), count))


def test_answers_show_their_working_and_end_as_gsm8k_does() -> None:
    assert SUM.answer == "7+8=15, 3+4+1=8\n37+48=85\n#### 85"
    assert TWO_STEPS.answer == "7+8=15, 3+4+1=8\n37+48=85\n15-9=6, 8-1-1=6\n85-19=66\n#### 66"


def test_thoughts_hold_the_working_and_no_final_answer() -> None:
    assert thought_answer(TWO_STEPS) == (
        "<think>\n7+8=15, 3+4+1=8\n15-9=6, 8-1-1=6\n</think>\n\n37+48=85\n85-19=66\n#### 66"
    )


def test_every_form_of_prompt_is_taught() -> None:
    lessons = [lesson for batch in taught(40) for lesson in batch]
    forms = {
        "chat": [one for one in lessons if one.prompt.startswith("[user]Question: ")],
        "bare question": [
            one for one in lessons if "[user]" in one.prompt and "Question:" not in one.prompt
        ],
        "system message": [one for one in lessons if one.prompt.startswith("[system]")],
        "plain": [one for one in lessons if one.prompt.endswith("\nAnswer:")],
        "examples as turns": [one for one in lessons if "[assistant]" in one.prompt],
        "examples in one message": [one for one in lessons if one.prompt.count("[user]Question:") == 1
                                    and one.prompt.count("Question:") > 1],
    }  # fmt: skip
    assert {name: len(found) > 20 for name, found in forms.items()} == dict.fromkeys(forms, True)
    for lesson in lessons:
        assert lesson.completion.startswith("<think>\n") is lesson.prompt.endswith("[think]")
        assert lesson.completion.startswith(" ") is lesson.prompt.endswith("\nAnswer:")


def test_examples_come_after_the_plain_batches() -> None:
    sizes = [len(batch) for batch in taught(3 * EXAMPLES_EVERY, plain_batches=EXAMPLES_EVERY)]
    plain = [BATCH_SIZE] * (EXAMPLES_EVERY - 1)
    assert sizes == [BATCH_SIZE, *plain] + [EXAMPLES_BATCH_SIZE, *plain] * 2
