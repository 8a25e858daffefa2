"""Odd completions, each with the answer that a careful grader takes from it, None where there is none."""

import pytest

from actograph.contract.tasks import NumericScorer
from actograph.scoring.final_answer import final_number
from actograph.scoring.scorers import Answered, ScorerSet, gold_number

LATEX: list[tuple[str, str | None]] = [
    ("\\boxed{12\\%}", "12"),
    ("\\boxed{\\textbf{42}}", "42"),
    ("\\boxed{{42}}", "42"),
    ("\\boxed{\\mathbf{42}}", "42"),
    ("\\boxed{42\\ \\text{km}}", "42"),
    ("\\boxed{42 \\, \\mathrm{cm}^2}", "42"),
    ("\\boxed{42^\\circ}", "42"),
    ("\\boxed{42^{\\circ}C}", "42"),
    ("\\boxed{\\$1,234.50}", "1234.5"),
    ("\\boxed{-\\dfrac{7}{2}}", "-3.5"),
    ("\\boxed{\\frac{7}{-2}}", "-3.5"),
    ("\\boxed{\\frac{22.5}{3}}", "7.5"),
    ("\\boxed{\\frac{\\frac{1}{2}}{3}}", None),
    ("\\boxed{2^3}", None),
    ("\\boxed{10!}", None),
    ("\\boxed{0.\\overline{3}}", None),
    ("\\boxed{\\infty}", None),
    ("\\boxed{12:30}", None),
    ("\\boxed{12\\text{ and }13}", None),
    ("\\boxed{(3,4)}", None),
    ("\\boxed{3-4}", None),
    ("\\boxed{3,45}", None),
    ("\\boxed{- 42}", "-42"),
    ("\\boxed{\\left(\\frac{1}{2}\\right)}", "0.5"),
    ("\\boxed{~42}", "42"),
    ("\\boxed{\\text{Answer: }42}", "42"),
    ("\\boxed{\\textcolor{red}{42}}", "42"),
    ("\\boxed{\\color{red}42}", "42"),
    ("\\boxed{\\underline{42}}", "42"),
    ("\\boxed{\\bf 42}", "42"),
    ("\\boxed{\\text{\\$}42}", "42"),
    ("\\boxed{USD\\ 42}", "42"),
    ("\\boxed{forty-two}", None),
    ("\\boxed{3}{4}", "3"),
    ("\\boxed{\\begin{aligned}42\\end{aligned}}", "42"),
    ("\\boxed{1}, \\boxed{2}, \\boxed{{{3}}}", "3"),
    ("Final Answer: The final answer is $42$. I hope it is correct.", "42"),
    ("The answer is $\\frac{1}{2}$", "0.5"),
]
SCRIPTS: list[tuple[str, str | None]] = [
    ("١٢٣", "123"),
    ("The answer is ١٢٫٥", "12.5"),
    ("The answer is ١٬٢٣٤", "1234"),
    ("The answer is १२", "12"),
    ("The answer is 𝟒𝟐", "42"),
    ("１，２３４．５", "1234.5"),
    ("🍎🍎 The answer is 5 🍎", "5"),
    ("The answer is 5️⃣", "5"),
    ("The answer is ₩42", "42"),
    ("The answer is 42₽", "42"),
    ("The answer is ¢42", "42"),
    ("The answer is HK$42", "42"),
    ("The answer is EUR 42", "42"),
    ("The answer is Rs. 42", "42"),
    ("The answer is -USD 42", "-42"),
    ("10³", "1000"),
    ("1×10³", "1000"),
    ("1.5 × 10⁻³", "0.0015"),
    ("The answer is 10**3", "1000"),
    ("The answer is 1 ½", "1.5"),
    ("The answer is 1 and 1/2", "1.5"),
]
SIGNS_AND_SCALES: list[tuple[str, str | None]] = [
    ("The answer is - 42", "-42"),
    ("The answer is − 42", "-42"),
    ("#### − 42", "-42"),
    ("#### – 42", "-42"),
    ("10 − 42", "42"),
    ("10 − 42 = −32", "-32"),
    ("The answer is minus 42", "-42"),
    ("The answer is negative 42", "-42"),
    ("a temperature of negative 42", "-42"),
    ("Tom's age minus 42", "42"),
    ("5 − −3 = 8", "8"),
    ("-5-(-3)=-2", "-2"),
    ("The answer is $12.5k", "12500"),
    ("The answer is $5M", "5000000"),
    ("The answer is $2bn", "2000000000"),
    ("The answer is a 5k run", "5"),
    ("The answer is 5m long", "5"),
    ("The answer is 3 hundred", "300"),
    ("She got 5 hundred-dollar bills", "5"),
]
CONTINENTAL: list[tuple[str, str | None]] = [
    ("1.234,50", "1234.5"),
    ("1.234.567", "1234567"),
    ("1.234", "1.234"),
    ("0,5", "0.5"),
    ("€12,50", "12.5"),
    ("12,50 €", "12.5"),
    ("₹1,23,456", "123456"),
    ("12,345", "12345"),
    ("The answer is 1_000", "1000"),
    ("1.2.3", None),
]
NOT_ONE_NUMBER: list[tuple[str, str | None]] = [
    ("The answer is between 10 and 12", None),
    ("The answer is somewhere between 10 and 12", None),
    ("The answer is 10-12", None),
    ("The answer is 10–12 eggs", None),
    ("The answer is 10 to 12", None),
    ("The answer is 5 or 6", None),
    ("#### 10-12", None),
    ("#### 10 or 12", None),
    ("#### 12:30", None),
    ("Answer: $10-$12", None),
    ("The answer is 5 or 6. So the answer is 6.", "6"),
    ("The answer is 0.5 or 50%", "0.5"),
    ("The answer is 3/4 or 0.75", "0.75"),
    ("The answer is 12 to the nearest dollar", "12"),
    ("The answer is 15-10=5", "5"),
    ("The answer is 5:30", None),
    ("The answer is 2:00 PM", "2"),
    ("#### 12:00", "12"),
    ("He leaves at 11:00.", "11"),
    ("at 11:00:00", None),
    ("The answer is 5:30 PM", None),
    ("The ratio is 3:4", None),
    ("2024-05-06", None),
    ("05/06/2024", None),
    ("The answer is 12 (not 13)", "12"),
    ("The answer is 12 rather than 13", "12"),
    ("The answer cannot be 7. It is 8.", "8"),
    ("The answer isn't 7. It's 8.", "8"),
    ("The answer is definitely not 7, it's 8", "8"),
]
MARKUP: list[tuple[str, str | None]] = [
    ("The answer is _42_", "42"),
    ("The answer is __42__", "42"),
    ("The answer is ***42***", "42"),
    ("The answer is x_5", None),
    ("The answer is <b>42</b>", "42"),
    ("The answer is `42`", "42"),
    ('{"answer": "5"}', "5"),
    ("<|im_start|>assistant\n42<|im_end|>\n<|im_start|>user\n43", "42"),
    ("<|start_header_id|>assistant<|end_header_id|>\n\n42<|eot_id|>43", "42"),
    ("42<｜end▁of▁sentence｜>43", "42"),
    ("42<|eom_id|>43", "42"),
    ("So the answer is 8.\n\nLet me verify: 16/2 = 8. 3 * 3 = 9.", "8"),
    ("Answer: 8\n\nExplanation: 9 - 1 = 8, and 10 is too many.", "8"),
    ("My answer: seven (7)", "7"),
    ("The answer is forty-two (42)", "42"),
    ("The answer is no. 12", "12"),
    ("The answer is (B) 13 apples", "13"),
    ("1. 5+5=10\n2. 10+2=12\n3. Done", "12"),
]


def test_odd_completions(subtests: pytest.Subtests) -> None:
    for completion, answer in LATEX + SCRIPTS + SIGNS_AND_SCALES + CONTINENTAL + NOT_ONE_NUMBER + MARKUP:
        with subtests.test(completion=completion, answer=answer):
            found = final_number(completion)
            assert (None if found is None else str(found)) == answer


def test_golds(subtests: pytest.Subtests) -> None:
    for gold, value in [
        ("-1,234", "-1234"), ("\u2212 7", "-7"), ("$1,234.50", "1234.5"), ("12%", "12"), ("2½", "2.5"),
        ("3/4", "0.75"), ("٤٢", "42"), ("1e3", "1000"), ("so 5 - 12 = -7\n#### -7", "-7"),
        ("\\boxed{12}", "12"),
    ]:  # fmt: skip
        with subtests.test(gold=gold, value=value):
            assert str(gold_number(gold)) == value
            numeric = ScorerSet([NumericScorer(name="numeric")])
            (score,) = numeric.score(Answered(completion=f"the answer is {value}", target=gold)).values()
            assert score.value == 1.0
