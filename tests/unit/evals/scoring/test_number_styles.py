"""Properties: how a number is written never changes the verdict, and another number is never right."""

from collections.abc import Callable
from fractions import Fraction

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from actograph.contract.tasks import Scorer
from evals.scoring.numbers import format_exact
from evals.scoring.scorers import Answer, ScorerSet

NUMERIC = ScorerSet([Scorer(name="numeric")])


def correct(completion: str, gold: str) -> bool:
    return NUMERIC.score(Answer(completion, gold))["exact_match,numeric"].value == 1


def grouped(mark: str) -> Callable[[int, str], str]:
    return lambda whole, rest: f"{whole:,}".replace(",", mark) + rest


#: a whole number and its decimals (with the point) -> as somebody would write them
WRITINGS: list[Callable[[int, str], str]] = [
    lambda whole, rest: f"{whole}{rest}",
    *(grouped(mark) for mark in (",", " ", "\u00a0", "\u202f", "'")),
    lambda whole, rest: f"{whole}{rest or '.0'}0",
    lambda whole, rest: f"{whole}{rest}".translate({48 + i: chr(0xFF10 + i) for i in range(10)}),
    lambda whole, rest: f"{whole:,}{rest}".replace(",", "{,}") if rest or whole else "0",
]
MINUS = ("-", "\u2212")
CURRENCY = ("", "$", "€", "US$", "\\$")
UNITS = ("", "%", " dollars", " km", "\\%", ".", " apples")
FRAMES = (
    "#### {}",
    "so we are done after 4 steps\n#### {}\n",
    "\\boxed{{{}}}",
    "First 7. Then $\\boxed{{{}}}$ it is",
    "The answer is {}.",
    "**Answer:** {}",
    "It was 12 - 3. The final answer is: **{}**",
    "x = {}",
    "So 2 of them. In all **{}**",
    "{}",
    "<think>maybe 17, or 21</think>\n\nIt has to be {}",
    "The answer is {}.\n\nQuestion: Bob has 99 eggs?\nAnswer: 99",
)
NUMBERS = st.tuples(
    st.booleans(),
    st.one_of(st.integers(0, 99), st.integers(0, 10**9)),
    st.one_of(st.just(""), st.text("0123456789", min_size=1, max_size=4).map(lambda digits: f".{digits}")),
)


@st.composite
def written(draw: st.DrawFn, numbers: st.SearchStrategy[tuple[bool, int, str]]) -> tuple[str, Fraction]:
    negative, whole, rest = draw(numbers)
    value = Fraction(f"{whole}{rest}") * (-1 if negative else 1)
    digits = draw(st.sampled_from(WRITINGS))(whole, rest)
    sign = draw(st.sampled_from(MINUS)) if negative else ""
    text = f"{sign}{draw(st.sampled_from(CURRENCY))}{digits}{draw(st.sampled_from(UNITS))}"
    return draw(st.sampled_from(FRAMES)).format(text), value


@settings(max_examples=250)
@given(written(NUMBERS))
def test_any_writing_of_the_right_number_is_right(case: tuple[str, Fraction]) -> None:
    completion, value = case
    assert correct(completion, format_exact(value))
    assert correct(completion, f"worked out\n#### {format_exact(value)}")


@settings(max_examples=250)
@given(written(NUMBERS), NUMBERS)
def test_another_number_is_never_right(case: tuple[str, Fraction], other: tuple[bool, int, str]) -> None:
    completion, value = case
    negative, whole, rest = other
    gold = Fraction(f"{whole}{rest}") * (-1 if negative else 1)
    assume(gold != value)
    assert not correct(completion, format_exact(gold))


@given(st.text(alphabet="0123456789.,/-+ $%eE^{}\\frac#*=boxed<>think'x×10√\u00a0\u2212½", max_size=60))
@settings(max_examples=250)
def test_no_text_makes_it_stumble(completion: str) -> None:
    score = NUMERIC.score(Answer(completion, "5"))["exact_match,numeric"]
    assert (score.value == 1.0) == (score.answer == "5")
