"""Normalised spelling of digits, signs, spaces, LaTeX and continental notation.

Positions in the result are not positions in the text. All patterns take linear time: repetitions are
possessive or bounded.
"""

import re
import unicodedata
from collections.abc import Callable

#: the planes of Unicode with digits and currency signs
_PLANES = range(0x20000)
CURRENCIES = frozenset(sign for sign in map(chr, _PLANES) if unicodedata.category(sign) == "Sc")

_MINUS = "\u2212\ufe63\uff0d\u2012\u2013"
_SPACES = "\u00a0\u2007\u2009\u202f"
#: digits of all other scripts: Arabic, Devanagari, full-width, mathematical bold and so on
_DIGITS = {
    sign: str(unicodedata.decimal(sign))
    for sign in map(chr, _PLANES[0x80:])
    if unicodedata.category(sign) == "Nd"
}
_VULGAR = {
    "½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅖": "2/5", "⅗": "3/5",
    "⅘": "4/5", "⅙": "1/6", "⅚": "5/6", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8",
}  # fmt: skip
_PLAIN = str.maketrans(
    dict.fromkeys(_MINUS, "-")
    | dict.fromkeys(_SPACES, "\u00a0")
    | _DIGITS
    | {sign: f" {fraction}" for sign, fraction in _VULGAR.items()}
    | {
        "\u2044": "/",
        "\u2019": "'",
        "\uff0c": ",",
        "\uff0e": ".",
        "\uff04": "$",
        "\uff05": "%",
        "\u2215": "/",
    }
    | {"\u066b": ".", "\u066c": ",", "\u066a": "%"}
)
_CALCULATOR = re.compile(r"<<[^<>\n]*+>>")
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_POWER_OF_TEN = re.compile(r"(?<![0-9.,])10(\u207b?[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]{1,6})")
_PYTHON_POWER = re.compile(r"(?<![*0-9])([0-9]{1,20})\*\*(?=[0-9])")
#: a minus sign (not a hyphen) and a space before a number, without an operand before it
_SPACED_MINUS = re.compile(r"(?<![0-9)\]%°])(?<![0-9)\]%°] )\u2212[ ](?=[$€£]?[0-9])")
#: GSM8K's answer to "at what time" is the hour alone
_ON_THE_HOUR = re.compile(r"(?<![0-9.,:])([0-9]{1,2}):00(?![0-9:]|[.,][0-9])")
#: `5:30`, `3:4`, `2024-05-06`: their parts are not numbers of their own
_CLOCK_OR_RATIO = re.compile(r"(?<![0-9.,])[0-9]{1,4}(?::[0-9]{1,4}){1,2}(?![0-9.,]?[0-9])")
_ISO_DATE = re.compile(r"(?<![0-9-])[0-9]{4}-[0-9]{2}-[0-9]{2}(?![0-9-])")
_NO_MORE = r"(?![0-9.,]?[0-9])"
#: points that can only separate groups, and commas that can only begin decimals
_POINTED_GROUPS = re.compile(
    rf"(?<![0-9.,])[0-9]{{1,3}}(?:(?:\.[0-9]{{3}}){{1,12}},[0-9]{{1,2}}|(?:\.[0-9]{{3}}){{2,12}}){_NO_MORE}"
)
_DECIMAL_COMMA = re.compile(
    rf"(?<![0-9.,])0,[0-9]{{1,20}}{_NO_MORE}|(?<=[€$£])\s?[0-9]{{1,20}},[0-9]{{2}}{_NO_MORE}"
    r"|(?<![0-9.,])[0-9]{1,20},[0-9]{2}(?=\s?€)"
)
_Replacement = str | Callable[[re.Match[str]], str]
_TEXT: tuple[tuple[re.Pattern[str], _Replacement], ...] = (
    (_ISO_DATE, "@"),
    (_ON_THE_HOUR, r"\1"),
    (_CLOCK_OR_RATIO, "@"),
    (_PYTHON_POWER, r"\1^"),
    (_POINTED_GROUPS, lambda found: found[0].replace(".", "").replace(",", ".")),
    (_DECIMAL_COMMA, lambda found: found[0].replace(",", ".")),
)
_LATEX: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\\([$%#&_])"), r"\1"),
    (re.compile(r"\\[,:;]"), "\u00a0"),
    (re.compile(r"\\!|\\left(?![a-z])|\\right(?![a-z])"), ""),
    (re.compile(r"\\(?:bf|it|rm|large|Large|huge|displaystyle|boldsymbol|bm)(?![a-zA-Z])"), ""),
    (re.compile(r"\\(?:begin|end|color)\s?\{[a-zA-Z*]{1,20}\}"), ""),
    (re.compile(r"\\(?:textcolor|colorbox)\s?\{[a-zA-Z]{1,20}\}\s?\{"), "{"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\[()\[\]]|\\ "), " "),
    (re.compile(r"\\[dtc]frac"), r"\\frac"),
    (
        re.compile(
            r"\\(?:text(?:bf|it|rm|sf|tt)?|math(?:rm|bf|sf|it|tt)|[mh]box|emph|underline|operatorname)\s?\{"
        ),
        "{",
    ),
    (re.compile(r"\^\s?(?:\{\s?\\circ\s?\}|\\circ)|\\degree(?![a-z])"), "°"),
    (re.compile(r"\.\s?\\(?:overline|bar|dot)(?![a-z])"), "√"),
    (re.compile(r"\\sqrt\s?(?:\{|(?=\[))?"), "√"),
    (re.compile(r"\\pi(?![a-z])"), "π"),
    (re.compile(r"\\(?:times|cdot)(?![a-z])"), "×"),
    (re.compile(r"\\approx(?![a-z])"), "≈"),
    (re.compile(r"\\(?:pm|mp)(?![a-z])"), "±"),
)


def spelled_plainly(text: str) -> str:
    """The text with ASCII digits and English notation, without calculator annotations and LaTeX markup.

    Ratios, ISO dates and times other than full hours become `@`, since they are not answers.
    """
    text = _SPACED_MINUS.sub("-", _CALCULATOR.sub("", text))
    text = _POWER_OF_TEN.sub(lambda found: f"10^{{{found[1].translate(_SUPERSCRIPTS)}}}", text)
    text = text.translate(_PLAIN)
    for pattern, plain in _TEXT:
        text = pattern.sub(plain, text)
    if "\\" in text or "{" in text:
        for pattern, replacement in _LATEX:
            text = pattern.sub(replacement, text)
    return text
