"""Functions of the operator: what they get and give, and what a bad one costs."""

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from actograph.contract.errors import FunctionFailed, InvalidRequest
from actograph.contract.resources import Score
from actograph.contract.tasks import Scorer
from actograph.settings import Settings
from evals.scoring.scorers import Answer, ScorerSet
from evals.user_functions.functions import UserFunctions

LAB = '''
import os
from typing import Annotated

from pydantic import Field

def stock(item: Annotated[str, Field(description="Name of the item.")], place: str = "here") -> str:
    """Look up how many of an item are in stock."""
    print("a print is no answer")
    return f"3 {item} {place}"

def bare(item): return item
def settings(): return sorted(name for name in os.environ if name.startswith("ACTOGRAPH_"))
def hang():
    while True: pass
def leave(): os._exit(3)
def much(): return "x" * (1 << 21)
def no_json(): return object()
def raises(): raise KeyError("no such thing")

def units(completion, target, question):
    answer = completion.split()[-1]
    return {"value": answer == target and "apples" in question, "answer": answer}

def share(completion, target, question): return len(completion) / 8
def text(completion, target, question): return "good"
'''
NAMES = ("stock", "bare", "settings", "hang", "leave", "much", "no_json", "raises", "units", "share", "text")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UserFunctions]:
    (tmp_path / "lab.py").write_text(textwrap.dedent(LAB))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("ACTOGRAPH_API_KEY", "secret")
    functions = UserFunctions.of([f"{name}=lab:{name}" for name in NAMES], seconds=2.0)
    yield functions
    functions.close()


def test_a_function_is_called_with_the_arguments_of_the_model(lab: UserFunctions) -> None:
    assert lab.call("stock", {"item": "apples", "place": "there"}) == "3 apples there"
    assert lab.call("settings", {}) == [], "secrets of the service stay with it"


def test_a_bad_call_costs_itself_alone(lab: UserFunctions, subtests: pytest.Subtests) -> None:
    for name, message in [
        ("raises", "raises failed: KeyError: 'no such thing'"),
        ("leave", "leave ended its process with status 3"),
        ("hang", "hang took more than 2 s"),
        ("much", "much gave an answer of more than 1048576 characters"),
        ("no_json", "no_json failed: TypeError: Object of type object is not JSON serializable"),
        ("stock", "stock failed: TypeError: stock() missing 1 required positional argument: 'item'"),
    ]:
        with subtests.test(name):
            with pytest.raises(FunctionFailed) as caught:
                lab.call(name, {})
            assert caught.value.message == message
            assert lab.call("stock", {"item": "plums"}) == "3 plums here"


def test_a_tool_is_described_by_its_docstring_and_type_hints(lab: UserFunctions) -> None:
    found = lab.definition("stock")
    assert found["description"] == "Look up how many of an item are in stock."
    assert found["parameters"] == {
        "type": "object",
        "properties": {
            "item": {"type": "string", "description": "Name of the item."},
            "place": {"type": "string", "default": "here"},
        },
        "required": ["item"],
        "additionalProperties": False,
    }
    with pytest.raises(FunctionFailed, match="docstring"):
        lab.definition("bare")


def test_scorers_give_truth_values_numbers_or_value_and_answer(lab: UserFunctions) -> None:
    answer = Answer("it is 5", "5", question="How many apples?")
    named = [Scorer(name="units"), Scorer(name="share", label="of8"), Scorer(name="numeric")]
    assert ScorerSet(named, own=lab).score(answer) == {
        "units,none": Score(value=1.0, answer="5"),
        "share,of8": Score(value=0.875),
        "exact_match,numeric": Score(value=1.0, answer="5"),
    }
    with pytest.raises(FunctionFailed, match="text returned good; a scorer returns a number"):
        ScorerSet([Scorer(name="text")], own=lab).score(answer)
    with pytest.raises(InvalidRequest, match="there is no scorer 'unit'; the scorers are strict-match"):
        ScorerSet([Scorer(name="unit")], own=lab)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"user_tools": "stock=lab"}, "not NAME=module:function"),
        ({"user_tools": "calculator=lab:stock"}, "'calculator' is already taken"),
        ({"user_scorers": "a=lab:a,a=lab:b"}, "'a' is already taken"),
    ],
)
def test_settings_that_name_no_function_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Settings(**given)  # type: ignore[arg-type]
