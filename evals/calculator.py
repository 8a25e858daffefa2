"""A calculator for models: arithmetic on numbers, bounded in size and time.

Python's parser reads the text, and this module evaluates the tree; nothing is executed. Whole numbers and
decimals are exact: 0.1 + 0.2 is 0.3, and 48 / 2 is 24. Roots and logarithms are floats.
"""

import ast
import math
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from fractions import Fraction

Number = Fraction | float

MAX_CHARS = 400
#: largest magnitude of a result or an intermediate result
LARGEST = 10**60
#: size of a numerator or denominator; larger fractions become floats
_MAX_BITS = 2048
_MAX_POWER = 400
_SIGNIFICANT = 12

_OPERATORS: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
#: name -> (function, fewest and most arguments)
_FUNCTIONS: Mapping[str, tuple[Callable[..., Number | int], int, int]] = {
    "abs": (abs, 1, 1),
    "round": (lambda x, digits=0: round(Fraction(x), _whole(digits)), 1, 2),
    "min": (min, 2, 16),
    "max": (max, 2, 16),
    "sum": (lambda *values: sum(values, Fraction(0)), 1, 16),
    "floor": (math.floor, 1, 1),
    "ceil": (math.ceil, 1, 1),
    "sqrt": (math.sqrt, 1, 1),
    "log": (math.log, 1, 2),
    "log10": (math.log10, 1, 1),
    "exp": (math.exp, 1, 1),
}
_CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e}
_SIGNS = str.maketrans(
    {"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "^": "**", "$": "", "€": "", "£": ""}
)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")


class CalculatorError(ValueError):
    """Error in an expression, in words for the model."""


def calculate(expression: str) -> str:
    """The value of an arithmetic expression, such as "24" for "48/2".

    Whole numbers have no decimal point; other results are rounded to 12 significant digits. Expressions may
    use + - * / // % ** and ^, brackets, thousands separators, currency signs, × ÷ −, `pi`, `e`, and sqrt abs
    round min max sum floor ceil log log10 exp.

    Raises:
        CalculatorError: the expression is not valid, or an intermediate result is too large.
    """
    if len(expression) > MAX_CHARS:
        raise CalculatorError(f"the expression is longer than {MAX_CHARS} characters")
    text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), expression.translate(_SIGNS).strip())
    if not text:
        raise CalculatorError("the expression is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "2 is 3" makes the parser warn
            tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise CalculatorError("the expression cannot be read; write arithmetic such as (3+4)*5/2") from None
    try:
        return _shown(_value(tree.body, text))
    except ZeroDivisionError:
        raise CalculatorError("division by zero") from None
    except OverflowError:
        raise CalculatorError("a number is too large") from None
    except RecursionError:
        raise CalculatorError("the expression is nested too deeply") from None
    except CalculatorError:
        raise
    except (TypeError, ValueError):
        raise CalculatorError("the expression has no real value") from None


def _value(node: ast.expr, text: str) -> Number:
    match node:
        case ast.Constant():
            return _bounded(_literal(node, text))
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
            value = _value(operand, text)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(left=left, op=operation, right=right):
            first, second = _value(left, text), _value(right, text)
            if isinstance(operation, ast.Pow):
                return _bounded(_power(first, second))
            known = _OPERATORS.get(type(operation))
            if known is not None:
                return _bounded(known(first, second))
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            function, fewest, most = _FUNCTIONS[name]
            if not fewest <= len(arguments) <= most:
                raise CalculatorError(f"{name} does not take {len(arguments)} arguments")
            value = function(*(_value(argument, text) for argument in arguments))
            return _bounded(Fraction(value) if isinstance(value, int) else value)
    raise CalculatorError(f"{_source(node, text)} is no arithmetic; only numbers, + - * / and brackets are")


def _literal(node: ast.Constant, text: str) -> Number:
    if isinstance(node.value, bool) or not isinstance(node.value, int | float):
        raise CalculatorError(f"{_source(node, text)} is no number")
    if isinstance(node.value, float) and not math.isfinite(node.value):
        raise CalculatorError("a number is too large")
    # from the digits as written: 0.1 is a tenth
    return Fraction(node.value) if isinstance(node.value, int) else Fraction(repr(node.value))


def _power(base: Number, exponent: Number) -> Number:
    size = abs(float(exponent))
    if size > _MAX_POWER or (base and size * abs(math.log10(abs(float(base)))) > 60):
        raise CalculatorError("the power is too large")
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        exact: Number = base ** int(exponent)
        return exact
    value: float | complex = float(base) ** float(exponent)
    if isinstance(value, complex):
        raise CalculatorError("the expression has no real value")
    return value


def _bounded(value: Number) -> Number:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise CalculatorError("a number is too large")
    elif max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        value = float(value)
    if not -LARGEST <= value <= LARGEST:
        raise CalculatorError("a number is too large")
    return value


def _whole(value: Number) -> int:
    if value != int(value) or not -100 <= value <= 100:
        raise CalculatorError("round takes a small whole number of digits")
    return int(value)


def _shown(value: Number) -> str:
    if value == int(value) and -(10**15) < value < 10**15:
        return str(int(value))
    if isinstance(value, Fraction) and value.denominator == 1:
        return str(value.numerator)
    return f"{float(value):.{_SIGNIFICANT}g}"


def _source(node: ast.expr, text: str) -> str:
    return repr((ast.get_source_segment(text, node) or type(node).__name__)[:40])
