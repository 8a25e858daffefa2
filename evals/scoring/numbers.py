"""Numbers in completions, read exactly.

Numbers have English notation: a point before the decimals, and commas, apostrophes, underscores or spaces
between groups of three digits. Continental notation is read if unambiguous (`1.234,50`, `0,5`, `€12,50`).
Digits of all scripts, signs (also in words), currencies, percent signs, units, fractions, mixed numbers,
powers of ten, scientific notation and words such as `million` are understood. Numbers that are parts of
something else (`2√3`, `5^2`, `1/0`, `5:30`, a date) are not read.

All patterns take linear time: repetitions are possessive or bounded.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from evals.scoring.spellings import CURRENCIES, spelled_plainly

#: limits of a number in an answer, which keep the arithmetic cheap
MAX_CHARS = 200
MAX_EXPONENT = 300
#: most decimal places of a number that is shown as a decimal
MAX_PLACES = 40

#: with commas as in India, and between groups of three
_GROUPED = r"[0-9]{1,2}(?:,[0-9]{2}){1,6},[0-9]{3}(?![0-9])|" + "|".join(
    rf"[0-9]{{1,3}}(?:{mark}[0-9]{{3}}(?![0-9]))++" for mark in (",", "'", "_", "[ ]", "\u00a0")
)
_WHOLE = rf"(?:{_GROUPED}|[0-9]++)"
_BRACED = r"\{\s?(-?[0-9][0-9,]{0,40}(?:\.[0-9]{1,40})?)\s?\}"
_LATEX_FRACTION = rf"\\frac\s?(?:{_BRACED}\s?{_BRACED}|([0-9])([0-9]))"
_NUMBER = re.compile(
    rf"""
    (?P<latex>{_LATEX_FRACTION})
    |
    (?:(?P<whole>{_WHOLE})(?P<decimals>(?:\.[0-9]++)*+)|(?<![0-9A-Za-z.])(?P<bare>\.[0-9]++))
    (?P<exponent>[eE][+-]?[0-9]{{1,6}}(?![0-9A-Za-z]))?
    (?:
        \s{{0,2}}(?P<latex_part>{_LATEX_FRACTION})
      | (?:\ {{1,2}}|\ and\ )(?P<numerator>[0-9]{{1,9}})/(?P<denominator>[0-9]{{1,9}})(?![0-9/])
      | /(?P<divisor>{_WHOLE}(?:\.[0-9]++)?)(?P<date>(?:/[0-9]++)*+)
      | \s?[×x*]\s?10\s?\^\s?(?:\{{\s?(?P<power>[+-]?[0-9]{{1,6}})\s?\}}|(?P<plain_power>[+-]?[0-9]{{1,6}}))
      | \s?\^\s?(?:\{{\s?(?P<raised>[+-]?[0-9]{{1,6}})\s?\}}|(?P<plain_raised>[+-]?[0-9]{{1,6}}))
    )?
    """,
    re.VERBOSE,
)
_SCALE = re.compile(r"[\s-]?(hundred|thousand|million|billion|trillion)s?\b(?!-[a-z])", re.IGNORECASE)
_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
#: only for amounts of money: elsewhere `5k` is a run and `5m` a length
_MONEY_SCALE = re.compile(r"([kKmMbB]|mn|bn)(?![A-Za-z0-9])")
_MONEY_SCALES = {"k": 10**3, "m": 10**6, "mn": 10**6, "b": 10**9, "bn": 10**9}

_CURRENCY_CODE = re.compile(r"(?:USD|EUR|GBP|JPY|INR|CAD|AUD|CHF|US|Rs\.?|RM|R)\Z")
_SPACED_CODE = re.compile(r"(?<![A-Za-z0-9])(?:USD|EUR|GBP|JPY|INR|CAD|AUD|CHF|Rs\.?)\s\Z")
#: a sign in words; after an operand `minus` is a subtraction
_SIGN_WORD = re.compile(r"(?:(?<![A-Za-z])negative|(?:^|\bis|[=:#({*])\s?minus)\s\Z", re.IGNORECASE)
#: signs next to a number that make it a part of something else
_BINDS_BEFORE = "√^_±"
_BINDS_AFTER = "√^π±²³⁴⁵⁶⁷⁸⁹⁰¹"
_OPERATOR = re.compile(r"[\s\u00a0]{0,3}(?:[+×÷/=<>]|\*(?!\*)|-(?=\s?[0-9($])|[xX](?=\s?[0-9($]))")
#: end of an operand; a minus after it is a subtraction
_BEFORE_SPACED_SIGN = re.compile(r"(?:[=({#]|\bis)\s*\Z")
_OPERAND_END = re.compile(r"[0-9)\]%°]\Z")


@dataclass(frozen=True, slots=True)
class Number:
    """The number in `text[start:end]`, including sign and currency."""

    value: Fraction
    start: int
    end: int
    has_decimals: bool

    def __str__(self) -> str:
        """The shortest exact form: `-1234.5`, or `1/3` if the decimals do not end."""
        return format_exact(self.value)


class NumberText:
    """A text with the positions of its numbers."""

    def __init__(self, text: str) -> None:
        self.text = spelled_plainly(text)
        #: starts of the digits of possible numbers, in order; not all can be read
        self.places = [match.start() for match in _NUMBER.finditer(self.text)]

    def read(self, place: int) -> Number | None:
        """Read the number whose first digit (or `\\frac`) is at `place`. None if it cannot be read."""
        match = _NUMBER.match(self.text, place)
        if match is None or match.end() - match.start() > MAX_CHARS:
            return None
        found = _value(match)
        if found is None:
            return None
        value, has_decimals = found
        end = match.end()
        text = self.text
        if end < len(text) and text[end] in _BINDS_AFTER:
            return None
        start = _skip_currency(text, match.start())
        if start is None:
            return None
        if (scale := _SCALE.match(text, end)) is not None:
            value, end = value * _SCALES[scale[1].lower()], scale.end()
        elif start < match.start() and (scale := _MONEY_SCALE.match(text, end)) is not None:
            value, end = value * _MONEY_SCALES[scale[1].lower()], scale.end()
        if (word := _SIGN_WORD.search(text[max(0, start - 16) : start])) is not None:
            value, start = -value, start - (word.end() - word.start())
        elif start and text[start - 1] in "-+" and _is_sign(text, start - 1):
            value = -value if text[start - 1] == "-" else value
            start = _skip_currency(text, start - 1) or start - 1
        elif start > 1 and text[start - 1] == " " and text[start - 2] == "-" and _is_spaced_sign(text, start):
            value, start = -value, start - 2
        return Number(value, start, end, has_decimals)

    def goes_on(self, number: Number) -> bool:
        """True if an operator follows, so that the number is an operand and not a result."""
        return _OPERATOR.match(self.text, number.end) is not None


def read_number(text: str) -> Number | None:
    """The only number of a text, which may have markup and a unit.

    Returns None if there is no number, or more than one.
    """
    numbers = NumberText(text.strip())
    if len(numbers.places) != 1:
        return None
    return numbers.read(numbers.places[0])


def format_exact(value: Fraction) -> str:
    """The number as a decimal with up to 40 places, or as a fraction in lowest terms."""
    scaled = abs(value) * 10**MAX_PLACES
    if scaled.denominator != 1:
        return f"{value.numerator}/{value.denominator}"
    digits = str(scaled.numerator).rjust(MAX_PLACES + 1, "0")
    decimal = f"{digits[:-MAX_PLACES]}.{digits[-MAX_PLACES:]}".rstrip("0").rstrip(".")
    return f"-{decimal}" if value < 0 else decimal


def _value(match: re.Match[str]) -> tuple[Fraction, bool] | None:
    """The unsigned value, and True if it has decimals."""
    if match["latex"] is not None:
        fraction = _latex_fraction(match["latex"])
        return None if fraction is None else (fraction, False)
    written = match["bare"] or match["whole"] + match["decimals"]
    if written.count(".") > 1:  # a version, an address, a date
        return None
    try:
        value = Fraction(re.sub(r"[, '_\u00a0]", "", written))
    except ValueError:
        return None
    if match["exponent"]:
        exponent = int(match["exponent"][1:])
        if abs(exponent) > MAX_EXPONENT:
            return None
        value *= Fraction(10) ** exponent
    if match["latex_part"] is not None:
        part = _latex_fraction(match["latex_part"])
        if part is None or value.denominator != 1:
            return None
        value += part
    elif match["numerator"] is not None:
        if int(match["denominator"]) == 0 or value.denominator != 1:
            return None
        value += Fraction(int(match["numerator"]), int(match["denominator"]))
    elif match["divisor"] is not None:
        if match["date"]:
            return None
        divisor = Fraction(re.sub(r"[, '_\u00a0]", "", match["divisor"]))
        if divisor == 0:
            return None
        value /= divisor
    elif (power := match["power"] or match["plain_power"]) is not None:
        if abs(int(power)) > MAX_EXPONENT:
            return None
        value *= Fraction(10) ** int(power)
    elif (raised := match["raised"] or match["plain_raised"]) is not None:
        if written != "10" or match["exponent"] or abs(int(raised)) > MAX_EXPONENT:
            return None
        value = Fraction(10) ** int(raised)
    return value, "." in written


_LATEX_FRACTION_PARTS = re.compile(_LATEX_FRACTION)


def _latex_fraction(text: str) -> Fraction | None:
    match = _LATEX_FRACTION_PARTS.fullmatch(text)
    if match is None:
        return None
    above, below = (match[1], match[2]) if match[1] is not None else (match[3], match[4])
    divisor = Fraction(below.replace(",", ""))
    return Fraction(above.replace(",", "")) / divisor if divisor else None


def _skip_currency(text: str, place: int) -> int | None:
    """Start of the currency before `place`; `place` without one, None inside a word."""
    if not place:
        return place
    start = place - 1 if text[place - 1] == " " and place > 1 and text[place - 2] in CURRENCIES else place
    if text[start - 1] in CURRENCIES:
        start -= 1
    if start == place and (spaced := _SPACED_CODE.search(text[max(0, place - 5) : place])) is not None:
        return place - len(spaced[0])
    if start and (text[start - 1].isalpha() or _binds_before(text, start - 1)):
        code = _CURRENCY_CODE.search(text[max(0, start - 4) : start])
        if code is None:
            # `$` closes a formula before this number, or the number belongs to a word
            return start if start < place and not _binds_before(text, start - 1) else None
        begins = start - len(code[0])
        if begins and text[begins - 1].isalnum():
            return None
        return begins
    return start


def _binds_before(text: str, place: int) -> bool:
    """True if the sign at `place` binds the number after it: it does in `x_5`, but `_5_` is emphasis."""
    if text[place] != "_":
        return text[place] in _BINDS_BEFORE
    while place and text[place - 1] == "_":
        place -= 1
    return place > 0 and (text[place - 1].isalnum() or text[place - 1] in ")}]")


def _is_sign(text: str, place: int) -> bool:
    """True if the `-` or `+` at `place` is the sign of the number after it."""
    if not place:
        return True
    before = text[place - 1]
    if before in "-+" or before.isalpha():  # a dash, or a hyphen
        return False
    return _OPERAND_END.search(text[max(0, place - 8) : place].rstrip()) is None


def _is_spaced_sign(text: str, start: int) -> bool:
    """True for `= - 5`, `(- 5`, `is - 5`, `#### - 5`; elsewhere it is a dash or a subtraction."""
    return _BEFORE_SPACED_SIGN.search(text[max(0, start - 8) : start - 2]) is not None
