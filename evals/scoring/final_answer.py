"""The final answer of a completion, as a number.

The first match in this list is the answer:

1. the first `#### 5`, GSM8K's own form, but not a heading (`#### Step 2`);
2. the last `\\boxed{5}`;
3. the last stated answer: `the answer is 5`, `Answer: 5`, `**Final answer** 5`;
4. the last result of an equation (`= 5`) or number in bold (`**5**`), whichever comes later;
5. the last number.

If one of the first three is a range or has alternatives (`10-12`, `5 or 6`), or a box has no single number,
there is no answer: a guess could be right by chance.

Think blocks, calculator annotations (`<<3+2=5>>`) and all text after an end-of-turn token are ignored. So is
all text after the heading of another problem (`Question:`), once there is a number.
"""

import re
from bisect import bisect_left

from evals.scoring.completions import cut_at_turn_end, without_thoughts
from evals.scoring.numbers import Number, NumberText

_NEXT_PROBLEM = re.compile(
    r"(?:^|(?<=[\s*#>]))(?:Q:|Problem(?:\s\d{1,4})?:|User:|Human:)|Question(?:\s\d{1,4})?:", re.MULTILINE
)
_HASHES = re.compile(r"####+")
#: `#### 2. Add them up` and `#### 2) ...` are headings
_LIST_ITEM = re.compile(r"[.):]\s{1,3}[*_]{0,2}[A-Za-z]")
_BOX = re.compile(r"\\(?:boxed|fbox)\s?\{")
_BOX_GOES_ON = re.compile(r"\s{0,3}(?:!|[,;:±]\s{0,3}[^\s}]|\{?\s?(?:and|or)\b)")
_ANSWER = re.compile(
    r"\b(?:answer|ans)\b[^\n.:=?!\d]{0,80}?(?P<verb>\b(?:is|was|equals|be|becomes|comes\sto)\b|[:=]|\uff1a)"
    r"|^[ \t#*_>]{0,12}(?:the\s)?(?:final\s)?answer[ \t*_]{0,8}$",
    re.IGNORECASE | re.MULTILINE,
)
_NEGATED = re.compile(r"[\s*_]{0,4}not\b", re.IGNORECASE)
#: negation between `answer` and its verb: `the answer cannot be 7`
_DENIED = re.compile(r"\b(?:not|cannot|never)\b|n['’]t\b", re.IGNORECASE)
#: words and signs allowed between a marker and its number
_FILLER = re.compile(
    r"(?:[\s\u00a0*_`\"'“”(\[{}:=~≈>$€£¥₹|\\-]|(?:is|was|a|an|the|about|around|exactly|approximately|only|just"
    r"|therefore|thus|then|hence|simply|equal|equals|to|total|of|now|also|still|at|least|most|indeed"
    r"|final|number|amount|result|answer|[A-Za-z]\s?=)(?![A-Za-z]))*+",
    re.IGNORECASE,
)
_MAX_FILLER = 120
#: text between two alternatives; a hyphen counts only if the second number is larger
_OFFERED_WITH = re.compile(r"\s{0,3}(?P<word>or|to)\s{1,3}(?=[$€£]?[0-9])|-(?=[$€£]?[0-9])")
_BETWEEN = re.compile(r"[\s*_]{0,4}(?:(?:is|was)\s)?(?:some(?:where|thing)\s)?between\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n")
_EQUALS = re.compile(r"(?<![<>!≠≤≥=≈])[=≈]++>?")
_BOLD = re.compile(r"\*\*([^*\n]{1,80})\*\*")


def final_number(completion: str) -> Number | None:
    """The final answer. Returns None if the completion has none that can be read."""
    return _Reader(cut_at_turn_end(without_thoughts(completion))).find()


class _NoSingleAnswer(Exception):
    """The stated answer is a range, or has alternatives."""


class _Reader:
    def __init__(self, text: str) -> None:
        numbers = NumberText(text)
        if numbers.places and (following := _NEXT_PROBLEM.search(numbers.text, numbers.places[0])):
            numbers = NumberText(numbers.text[: following.start()])
        self._numbers, self._text, self._places = numbers, numbers.text, numbers.places

    def find(self) -> Number | None:
        if not self._places:
            return None
        try:
            found = self._after_hashes()
            if found is not None:
                return found
            boxes = [match.end() for match in _BOX.finditer(self._text)]
            if boxes:
                return self._in_box(boxes[-1])
            return self._stated() or self._result() or self._last_between(0, len(self._text))
        except _NoSingleAnswer:
            return None

    def _after_hashes(self) -> Number | None:
        for marker in _HASHES.finditer(self._text):
            number = self._adjacent(marker.end())
            if number is not None and _LIST_ITEM.match(self._text, number.end) is None:
                return self._evaluated(number, marker.end(), self._line_end(marker.end(), len(self._text)))
        return None

    def _in_box(self, start: int) -> Number | None:
        end = self._closing_brace(start)
        equation = self._text.rfind("=", start, end)
        number = self._complete(start if equation < 0 else equation + 1)
        if number is None or number.end > end or _BOX_GOES_ON.match(self._text, number.end, end) is not None:
            return None
        return number

    def _closing_brace(self, start: int) -> int:
        depth = 1
        for brace in re.compile(r"[{}]").finditer(self._text, start):
            depth += 1 if brace[0] == "{" else -1
            if not depth:
                return brace.start()
        return len(self._text)

    def _stated(self) -> Number | None:
        marks = list(_ANSWER.finditer(self._text))
        limit = len(self._text)
        for mark in reversed(marks):
            end, limit = limit, mark.start()
            if _NEGATED.match(self._text, mark.end()) is not None or _DENIED.search(mark[0]) is not None:
                continue
            if _BETWEEN.match(self._text, mark.end()) is not None:
                raise _NoSingleAnswer
            number = self._after_statement(mark, end)
            if number is not None:
                return number
        return None

    def _after_statement(self, mark: re.Match[str], limit: int) -> Number | None:
        """`limit`: start of the next statement."""
        start = mark.end()
        is_sentence = mark["verb"] is not None and mark["verb"].isalpha()
        number = self._adjacent(start)
        if number is not None:
            end = self._sentence_end(number.end, limit) if is_sentence else self._line_end(number.end, limit)
            result = self._evaluated(number, start, end)
            if result is None or is_sentence:
                return result
            # `Answer: 48 clips in May, and 24 ...` starts a calculation
            through = end if result is number else limit
            return None if self._has_number(result.end, through) else result
        filler = _FILLER.match(self._text, start, limit)
        begin = filler.end() if filler is not None else start
        end = self._sentence_end(begin, limit)
        if not is_sentence and self._has_number(end, limit):
            return None
        return self._last_between(begin, end)

    def _evaluated(self, number: Number, start: int, end: int) -> Number | None:
        """The number itself, or the result of the equation that starts with it."""
        equation = self._text.rfind("=", start, end)
        if equation < start or not self._numbers.goes_on(number):
            self._check_is_alone(number)
        if not self._numbers.goes_on(number):
            return number
        return self._complete(equation + 1) if equation >= 0 else None

    def _check_is_alone(self, number: Number) -> None:
        """Raises _NoSingleAnswer for the first of `10-12`, `10 to 12`, `5 or 6`."""
        joint = _OFFERED_WITH.match(self._text, number.end)
        second = self._adjacent(joint.end()) if joint is not None else None
        if joint is None or second is None:
            return
        if number.value in (second.value, second.value * 100, second.value / 100):
            return  # `0.5 or 50%`
        if joint["word"] or second.value > number.value:
            raise _NoSingleAnswer

    def _result(self) -> Number | None:
        equations = (self._complete(mark.end()) for mark in reversed(list(_EQUALS.finditer(self._text))))
        equation = next((number for number in equations if number is not None), None)
        bold = None
        for strong in reversed(list(_BOLD.finditer(self._text))):
            number, end = self._complete(strong.start(1)), strong.end(1)
            if number is None or number.end > end or self._has_number(number.end, end):
                continue
            if _LIST_ITEM.match(self._text, number.end) is None:
                bold = number
                break
        if equation is None or bold is None:
            return equation or bold
        return max(equation, bold, key=lambda number: number.end)

    def _complete(self, start: int) -> Number | None:
        """The adjacent number after `start`, if it is not the first operand of a calculation."""
        number = self._adjacent(start)
        return None if number is None or self._numbers.goes_on(number) else number

    def _last_between(self, start: int, end: int) -> Number | None:
        first, beyond = bisect_left(self._places, start), bisect_left(self._places, end)
        read = map(self._numbers.read, reversed(self._places[first:beyond]))
        return next((number for number in read if number is not None), None)

    def _adjacent(self, start: int) -> Number | None:
        """The first number after `start`, with only filler before it."""
        place = bisect_left(self._places, start)
        if place == len(self._places):
            return None
        number = self._numbers.read(self._places[place])
        if number is None or self._places[place] - start > _MAX_FILLER:
            return None
        begins = max(start, number.start)
        return number if _FILLER.fullmatch(self._text, start, begins) is not None else None

    def _has_number(self, start: int, end: int) -> bool:
        place = bisect_left(self._places, start)
        return place < len(self._places) and self._places[place] < end

    def _line_end(self, start: int, limit: int) -> int:
        end = self._text.find("\n", start, limit)
        return limit if end < 0 else end

    def _sentence_end(self, start: int, limit: int) -> int:
        found = _SENTENCE_END.search(self._text, start, limit)
        return limit if found is None else found.start()
