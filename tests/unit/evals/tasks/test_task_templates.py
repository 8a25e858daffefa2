"""Templates and files of a client's own tasks: what they make, and what they may not do."""

from datetime import date
from typing import Any

import pytest

from actograph.contract.errors import InvalidDataset, InvalidRequest
from actograph.contract.task_files import read_task_file, task_from
from actograph.contract.tasks import TaskSpec
from evals.task_rows import RowTemplate, Task

ROW = {"question": "2 + 3?", "answer": "so\n#### 5", "choices": ["a", "b"], "n": 5}


def render(source: str, row: dict[str, Any] | None = None) -> str:
    return RowTemplate(source, param="task.prompt").render(ROW if row is None else row)


def test_what_templates_make(subtests: pytest.Subtests) -> None:
    for source, text in [
        ("{{question}}", "2 + 3?"),
        ("question", "2 + 3?"),
        ("Q: {{question}}\nA:", "Q: 2 + 3?\nA:"),
        ("{{question}}\n", "2 + 3?\n"),
        ("{{answer.split('####')[-1].strip() if answer is defined else target}}", "5"),
        ("{% for c in choices %}{{loop.index}}. {{c|upper}}\n{% endfor %}", "1. A\n2. B\n"),
        ("{{choices[1]}} {{choices|length}} {{n + 1}}", "b 2 6"),
        ("{{choices|join(', ')}}", "a, b"),
        ("{{question|replace('2', 'two')}}", "two + 3?"),
        ("{{'<b>' ~ question}}", "<b>2 + 3?"),
    ]:
        with subtests.test(source=source, text=text):
            assert render(source) == text


def test_a_source_that_is_not_a_template_is_refused(subtests: pytest.Subtests) -> None:
    for source in ["{{", "{% if %}", "{{ a|nosuchfilter }}", "{{ " + "not " * 20_000 + "a }}"]:
        with subtests.test(source=source):
            with pytest.raises(InvalidRequest, match="not a Jinja template") as caught:
                RowTemplate(source, param="task.prompt")
            assert caught.value.param == "task.prompt"


def test_a_template_reaches_nothing_but_its_row(subtests: pytest.Subtests) -> None:
    for source in [
        "{{ question.__class__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ question|attr('__class__') }}",
        "{{ '{0.__class__}'.format(question) }}",
        "{{ range(9) }}",
        "{{ lipsum() }}",
        "{% include 'x' %}",
        "{% import 'x' as y %}",
        "{{ choices.append(1) }}",
    ]:
        with subtests.test(source=source), pytest.raises(InvalidDataset):
            render(source)


@pytest.mark.parametrize(
    "source", ["{{question.upper}}", "{{n.bit_length}}", "{{self}}", "{{choices|map('upper')}}"]
)
def test_what_has_no_text_of_its_own_is_refused(source: str) -> None:
    """A forgotten pair of brackets must not end up in the prompts."""
    with pytest.raises(InvalidDataset, match="is not a value; call a method with brackets"):
        render(source)


def test_a_row_that_does_not_fit_says_why(subtests: pytest.Subtests) -> None:
    for record, reason in [
        ({"answer": "5"}, "'question' is undefined"),
        ({"question": "q"}, "target: 'answer' is undefined"),
        ({"question": " ", "answer": "5"}, "the prompt is empty"),
        ({"question": "a\0", "answer": "5"}, "NUL"),
        ({"question": float("nan"), "answer": "5"}, r"column question has a float that JSON lacks \(nan\)"),
        (
            {"question": date(2024, 5, 1), "answer": "5"},
            "question has a date that JSON lacks",
        ),
    ]:
        with subtests.test(record=record, reason=reason), pytest.raises(InvalidDataset, match=reason):
            Task(TaskSpec(name="t"))(0, record)


YAML = b"""
name: sums
prompt: "{{question}}"
stop: ["\\n\\n"]
scorers: [numeric, {name: efficiency, target_tokens: 40}]
fewshot:
  samples:
    - {question: "1 + 1?", answer: "2"}
"""


def test_a_task_file() -> None:
    task = task_from(read_task_file(YAML))
    assert (task.name, task.stop, [s.key for s in task.scorers]) == (
        "sums",
        ["\n\n"],
        ["exact_match,numeric", "efficiency,none"],
    )


#: nine lines that stand for 9^9 texts
ALIASES = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (name, name, b",".join([b"*%c" % (name - 1)] * 9)) for name in range(98, 107)
)


def test_what_is_no_task_file(subtests: pytest.Subtests) -> None:
    for content, reason in [
        (b"\xff", "not YAML: .utf-8. codec"),
        (b"a: [", "not YAML"),
        (b"- a", "not a mapping"),
        (b"a: !!python/object/apply:os.system [ls]", "not YAML"),
        (b"x" * 200_001, "larger than"),
        (b"[" * 100_000, "nested too deeply"),
        (b"a: " + b"9" * 90_000, "not YAML"),
        (ALIASES, "uses aliases; write the values out"),
    ]:
        with subtests.test(content=content[:40]), pytest.raises(InvalidRequest, match=reason):
            read_task_file(content)


def test_wrong_fields_of_a_task_file_are_named() -> None:
    with pytest.raises(
        InvalidRequest, match=r"name: this field is missing; promt: unknown field. Did you mean 'prompt'"
    ):
        task_from({"promt": "x"})


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for a in many %}{% for b in many %}{% endfor %}{% endfor %}", "take more than 100000 steps"),
        ("{% for a in many %}{{ long }}{% endfor %}", "makes a text longer than 1000000 characters"),
    ],
)
def test_a_template_of_a_million_loops_is_refused(source: str, reason: str) -> None:
    with pytest.raises(InvalidDataset, match=reason):
        render(source, {"many": [1] * 1000, "long": "y" * 90_000})
