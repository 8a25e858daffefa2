"""Labels of sessions for probes."""

from typing import Any

import pytest

from actograph.contract.errors import InvalidRequest
from actograph.contract.specs import ProbeSpec
from worker.analysis.labels import labels_of
from worker.analysis.session_rows import AboutSession

JOB = "job_" + "0" * 32


def session(**changes: Any) -> AboutSession:
    fields: dict[str, Any] = {
        "job_id": JOB,
        "sample_id": "smp_" + "0" * 32,
        "sample_index": 0,
        "condition": "plain",
        "epoch": 0,
        "correct": None,
        "scores": {},
        "completion": "",
        "generated_tokens": 1,
        "input": {},
        "problem": "p",
        "text": "t",
    }
    return AboutSession(**fields | changes)


def labels(label: str, *about: AboutSession, above: float | None = None) -> list[str | None]:
    spec = ProbeSpec.model_validate({"kind": "probe", "jobs": [JOB], "label": label, "above": above})
    return labels_of(spec, about, None)  # type: ignore[arg-type]


def test_verdicts_conditions_and_jobs_are_texts() -> None:
    assert labels("correct", session(correct=True), session(correct=False), session()) == ["1", "0", None]
    assert labels("condition", session()) == ["plain"]
    assert labels("job", session()) == [JOB]


def test_parity_is_that_of_the_answer_or_of_the_target() -> None:
    about = [
        session(completion="3 + 4 = 7, so #### 7", input={"answer": "So it is 8. #### 8"}),
        session(completion="It is 1,204.", input={"answer": "-3"}),
        session(completion="It is 2.5.", input={"answer": "1.5"}),
        session(completion="I do not know.", input={"answer": "Paris"}),
        session(input={"prompt": "no target"}),
    ]
    assert labels("answer_parity", *about) == ["odd", "even", None, None, None]
    assert labels("target_parity", *about) == ["even", "odd", None, None, None]


def test_scores_come_before_fields_of_the_input_and_its_columns() -> None:
    about = [
        session(scores={"difficulty": {"value": 0.5, "answer": None}}, input={"difficulty": "hard"}),
        session(input={"difficulty": "hard", "columns": {"difficulty": "easy"}}),
        session(input={"question": "?", "answer": "1", "columns": {"difficulty": 3}}),
        session(),
    ]
    assert labels("difficulty", *about) == ["0.5", "hard", "3", None]


def test_numbers_are_split_and_those_above_are_the_larger_label() -> None:
    about = [session(input={"n": value}) for value in (1, "2", 2.5, None)]
    found = labels("n", *about, above=2)
    assert found == ["<= 2", "<= 2", "> 2", None]
    assert max(one for one in found if one) == "> 2"
    with pytest.raises(InvalidRequest, match="'many' is not a number"):
        labels("n", session(input={"n": "many"}), above=2)
