"""Outputs of notebooks: HTML with its own scripts and styles, which asks nothing of a server.

Texts of users and models are texts in it, whatever they contain. Without scripts (in a notebook that is not
trusted) tokens have the same colours and titles.
"""

import base64
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.viewer import STATIC
from actograph.viewer.scale import Scale, ScaleKind

#: letters of a token's text that an output has; more are not shown
LONGEST = 60
#: points of a line
MOST_POINTS = 256
#: scripts in the order of their imports
_SCRIPTS = ("colours.js", "tokens.js", "notebook.js")
_STYLES = ("palette.css", "tokens.css", "notebook.css")
_IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)
_MONO = "white-space:pre-wrap;overflow-wrap:anywhere;font-family:monospace"

Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class ShownTokens:
    """Tokens from number `start` on. `texts` is empty if only their ids are known.

    Attributes:
        segments: name, start and stop of each.
    """

    start: int
    ids: Sequence[int]
    texts: Sequence[str]
    segments: Sequence[tuple[str, int, int]]
    prompt_tokens: int

    def text(self, place: int) -> str:
        """The text of a token in view, or its id."""
        return self.texts[place] if self.texts else str(self.ids[place])


@dataclass(frozen=True, kw_only=True)
class Colouring:
    """A number for each token in view, NaN without one. The first `skip` tokens have no colour."""

    name: str
    numbers: Floats
    kind: ScaleKind
    skip: int = 0


@dataclass(frozen=True, kw_only=True)
class ShownAttention:
    """Attention of one head.

    Attributes:
        start: number of the first row's token.
        weights: [rows, tokens in view]: shares of the tokens, up to the row's own.
    """

    name: str
    start: int
    weights: Floats


@dataclass(frozen=True, kw_only=True)
class ShownSession:
    """The contents of an output about a session.

    Attributes:
        facts: in one line, above the tokens.
        beside: further numbers of the tokens in view, by name.
        notes: below the tokens, such as what was read.
        trouble: why something is not shown.
        hooks: lines of the table of tensors.
    """

    facts: str
    tokens: ShownTokens | None = None
    colouring: Colouring | None = None
    beside: Mapping[str, Floats] = field(default_factory=dict)
    attention: ShownAttention | None = None
    notes: Sequence[str] = ()
    trouble: str = ""
    hooks: Sequence[Sequence[str]] = ()


def session_html(shown: ShownSession) -> str:
    """The output of a session."""
    parts = [f'<p class="about">{escape(shown.facts)}</p>']
    if shown.trouble:
        parts.append(f'<p class="note bad">{escape(shown.trouble)}</p>')
    data = ""
    if shown.tokens is not None:
        scale = None
        if shown.colouring is not None:
            scale = Scale.of(shown.colouring.numbers[shown.colouring.skip :], shown.colouring.kind)
            parts.append(_legend(scale, shown.colouring.name))
        spans = _spans(shown.tokens, shown.colouring, scale)
        parts.append(f'<div class="tokens" dir="ltr" style="{_MONO}">{spans}</div>')
        parts.append('<p class="note told" role="status"></p>')
        data = json.dumps(_output(shown, shown.tokens), ensure_ascii=False, separators=(",", ":"))
    parts += [f'<p class="note">{escape(note)}</p>' for note in shown.notes]
    if shown.hooks:
        parts.append(_table("Tensors", ("Hook", "Shape", "Stored as"), shown.hooks))
    return _output_html("".join(parts), data)


def summary_html(
    facts: str,
    numbers: Floats | None,
    name: str,
    notes: Sequence[str] = (),
    lines: Sequence[Sequence[str]] = (),
) -> str:
    """The output of rows: facts, and a line through one number for each.

    Args:
        numbers: at most `MOST_POINTS`; None: there is no line.
        name: of the numbers.
    """
    parts = [f'<p class="about">{escape(facts)}</p>']
    if numbers is not None and np.isfinite(numbers).any():
        finite = numbers[np.isfinite(numbers)]
        parts.append(sparkline(numbers, name))
        ends = f"{short(float(finite.min()))} to {short(float(finite.max()))}"
        parts.append(f'<p class="note">{escape(name)}: {ends}</p>')
    parts += [f'<p class="note">{escape(note)}</p>' for note in notes]
    if lines:
        parts.append(_table("Labels", ("Label", "Rows"), lines))
    return _output_html("".join(parts), "")


def sparkline(numbers: Floats, name: str) -> str:
    """A line through numbers; missing ones are gaps."""
    finite = numbers[np.isfinite(numbers)].astype(np.float64)
    low, high = float(finite.min()), float(finite.max())
    height = (high - low) or 1.0
    paths, is_open = [], False
    for place, number in enumerate(numbers.tolist()):
        if not np.isfinite(number):
            is_open = False
            continue
        paths.append(f"{'L' if is_open else 'M'}{place + 0.5:g} {30 - 28 * (number - low) / height:.2f}")
        if not is_open:
            paths.append("h0.01")  # a point between gaps is seen too
        is_open = True
    return (
        f'<svg class="spark" viewBox="0 0 {len(numbers)} 32" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(name)}" width="640" height="48"><path d="{"".join(paths)}" fill="none" '
        'stroke="currentColor" stroke-width="1.5" stroke-linecap="round" '
        'vector-effect="non-scaling-stroke"/></svg>'
    )


def short(number: float) -> str:
    """A number with four digits."""
    return "no row" if np.isnan(number) else f"{number:.4g}"


def visible(text: str) -> str:
    """A token's text with signs for what cannot be seen."""
    letters = text[: 4 * LONGEST].replace("\n", "⏎\n").replace("\t", "⇥\t")
    return (f"{letters[:LONGEST]}…" if len(letters) > LONGEST else letters) or "·"


def _output(shown: ShownSession, tokens: ShownTokens) -> dict[str, Any]:
    """The data that `notebook.js` reads."""
    colouring, attention = shown.colouring, shown.attention
    kind = colouring.kind if colouring is not None else ScaleKind()
    return {
        "tokens": {
            "start": tokens.start,
            "ids": [*tokens.ids],
            # one letter more than is shown, so that the script sees that there are more
            "texts": [text[: LONGEST + 1] for text in tokens.texts],
            "segments": [
                {"name": name, "start": start, "stop": stop} for name, start, stop in tokens.segments
            ],
        },
        "promptTokens": tokens.prompt_tokens,
        "name": colouring.name if colouring is not None else "",
        "numbers": None if colouring is None else _base64(colouring.numbers),
        "kind": {"signed": kind.signed, "log": kind.log, "sparse": kind.sparse},
        "skip": colouring.skip if colouring is not None else 0,
        "beside": {name: _base64(numbers) for name, numbers in shown.beside.items()},
        "attention": None
        if attention is None
        else {
            "name": attention.name,
            "start": attention.start,
            "stop": attention.start + len(attention.weights),
            "weights": _base64(
                np.concatenate(
                    [
                        row[: attention.start - tokens.start + place + 1]
                        for place, row in enumerate(attention.weights)
                    ]
                    or [np.empty(0, "<f4")]
                )
            ),
        },
    }


def _base64(numbers: Floats) -> str:
    return base64.b64encode(numbers.astype("<f4").tobytes()).decode("ascii")


def _spans(tokens: ShownTokens, colouring: Colouring | None, scale: Scale | None) -> str:
    found, begins = [], {start: name for name, start, _ in tokens.segments}
    for place in range(len(tokens.ids)):
        token = tokens.start + place
        if token in begins:
            found.append(f'<span class="mark">{escape(begins[token].replace("_", " "))}</span>')
        title, style = f"token {token}", ""
        if colouring is not None and scale is not None:
            number = float(colouring.numbers[place])
            title += f" · {colouring.name} {short(number)}"
            colour = scale.colour(number) if place >= colouring.skip else None
            if colour is not None:
                style = f' style="background-color:{colour[0]};color:{colour[1]}"'
        kind = "token" if tokens.texts else "token number"
        text = escape(visible(tokens.text(place)))
        found.append(f'<span class="{kind}" title="{escape(title)}"{style}>{text}</span>')
    return "".join(found)


def _legend(scale: Scale, name: str) -> str:
    return (
        f'<p class="scale"><span>≤ {short(scale.low)}</span><span style="background:{scale.gradient}"></span>'
        f"<span>≥ {short(scale.high)}</span><bdi>{escape(name)}</bdi></p>"
    )


def _table(title: str, headers: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in headers)
    body = "".join(f"<tr>{''.join(f'<td>{escape(one)}</td>' for one in line)}</tr>" for line in lines)
    return f"<details><summary>{escape(title)}</summary><table><tr>{head}</tr>{body}</table></details>"


@cache
def _style() -> str:
    return "".join((STATIC / name).read_text(encoding="utf-8") for name in _STYLES)


@cache
def _script() -> str:
    """The modules as one: an output has no address from which a module could be imported."""
    texts = ((STATIC / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    return "".join(_EXPORT.sub("", _IMPORT.sub("", text)) for text in texts)


def _output_html(content: str, data: str) -> str:
    """A whole output. Its script finds it by an id of its own."""
    if not data:
        return f'<div class="actograph notebook"><style>{_style()}</style>{content}</div>'
    name = f"actograph-{secrets.token_hex(8)}"
    return (
        f'<div class="actograph notebook" id="{name}" data-output="{escape(data)}"><style>{_style()}</style>'
        f"{content}</div><script>(() => {{\n{_script()}\n"
        f'showOutput(document.getElementById("{name}"));\n}})();</script>'
    )
