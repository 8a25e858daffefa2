"""The calculator: right on arithmetic, short and safe on everything else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.calculator import MAX_CHARS, CalculatorError, calculate


def test_arithmetic(subtests: pytest.Subtests) -> None:
    for expression, value in [
        ("48/2", "24"), ("48/2+48", "72"), ("0.1+0.2", "0.3"), ("1/3", "0.333333333333"), ("2^10", "1024"),
        ("2**-1", "0.5"), ("1,234 + 1", "1235"), ("$1,200,000/4", "300000"), ("3 × 4 ÷ 2 − 1", "5"),
        ("-(3+4)*5", "-35"), ("7//2", "3"), ("-7 % 3", "2"), ("sqrt(16)", "4"), ("round(2.345, 2)", "2.34"),
        ("max(1, 2, 3) - min(4, 5)", "-1"), ("abs(-2.50)", "2.5"), ("floor(2.9) + ceil(2.1)", "5"),
        ("2*pi", "6.28318530718"), ("1e3", "1000"), ("10**50 + 1 - 10**50", "1"), ("sum(1, 2, 3)", "6"),
        (" 12 ", "12"), ("150*0.2", "30"), ("0.15*20", "3"), ("1/8", "0.125"), ("log10(1000)", "3"),
    ]:  # fmt: skip
        with subtests.test(expression=expression, value=value):
            assert calculate(expression) == value


def test_anything_else_is_an_error_that_says_why(subtests: pytest.Subtests) -> None:
    for expression, says in [
        ("", "empty"), ("two + two", "no arithmetic"),
        ("2 apples", "cannot be read"), ("1/0", "division by zero"), ("5 % 0", "division by zero"),
        ("9**9**9", "too large"), ("10**61", "too large"), ("1e400", "too large"),
        ("(-8)**0.5", "no real value"), ("sqrt(-1)", "no real value"), ("log(0)", "no real value"),
        ("(1).real", "no arithmetic"), ("__import__('os').system('true')", "no arithmetic"),
        ("open('x')", "no arithmetic"), ("'a'*3", "no number"), ("True + 1", "no number"),
        ("[1][0]", "no arithmetic"), ("x", "no arithmetic"), ("1 if 2 else 3", "no arithmetic"),
        ("3 == 3", "no arithmetic"), ("1; 2", "cannot be read"), ("1j*2", "no number"),
        ("round(1, 0.5)", "whole number"), ("min(1)", "does not take 1 arguments"),
        ("sqrt(x=4)", "no arithmetic"), ("max(*[1, 2], 3)", "no arithmetic"),
        ("1+" * 300 + "1", "longer than"), ("lambda: 1", "no arithmetic"), ("f'{1}'", "no arithmetic"),
        ("0x" + "f" * 300, "too large"), ("exp(1000)", "too large"), ("(" * 300, "cannot be read"),
    ]:  # fmt: skip
        with subtests.test(expression=expression, says=says), pytest.raises(CalculatorError, match=says):
            calculate(expression)


@settings(max_examples=400)
@given(st.text(alphabet="0123456789+-*/%^().,eE $<=>[]'xsqrtminabslog×−", max_size=MAX_CHARS + 5))
def test_any_text_gives_a_number_or_one_kind_of_error(text: str) -> None:
    try:
        shown = calculate(text)
    except CalculatorError:
        return
    assert float(shown) == float(shown)
