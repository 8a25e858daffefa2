"""Figures of the logit lens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from worker.analysis.results import OKABE_ITO, new_figure

#: most columns of the grid of tokens, and most letters in a cell
COLUMNS, LETTERS = 24, 10
#: letters that matplotlib's own font has
_LAST_LETTER = "\u024f"
_SPACES = "▁"


@dataclass(frozen=True)
class TokenGrid:
    """The top token of each hook and position of one session.

    Attributes:
        texts: hooks by positions.
        probabilities: of these tokens, [hooks, positions].
    """

    session_id: str
    hooks: Sequence[str]
    positions: NDArray[Any]
    texts: Sequence[Sequence[str]]
    probabilities: NDArray[Any]


def by_hook(found: Sequence[dict[str, Any]]) -> Any:
    """Log probability of the next token, and agreement with the last hook, by hook."""
    figure = new_figure(9, 3.5)
    left, right = figure.subplots(1, 2)
    names = list(dict.fromkeys(name for one in found for name in one["hooks"]))
    for number, one in enumerate(found):
        colour, label = OKABE_ITO[number % 8], f"{one['model']} {one['job_id'][:12]}"
        for axes, key in ((left, "next_log_probability"), (right, "agreement")):
            known = [(names.index(name), value[key]) for name, value in one["hooks"].items()]
            known = [(place, value) for place, value in known if value is not None]
            if known:
                axes.plot(*zip(*known, strict=True), "o-", ms=3, color=colour, label=label)
    left.set(title="log probability of the next token", ylabel="nats")
    right.set(title="same top token as the last hook", ylim=(0, 1.02))
    for axes in (left, right):
        axes.set_xticks(range(len(names)), names, rotation=45, ha="right", parse_math=False)
    for text in right.legend(fontsize=7).get_texts():
        text.set_parse_math(False)
    return figure


def attribution(found: Sequence[dict[str, Any]]) -> Any:
    """Mean contribution of each component."""
    figure = new_figure(9, 3.5)
    axes = figure.subplots()
    names = list(dict.fromkeys(name for one in found for name in one["attribution"]["components"]))
    width = 0.8 / len(found)
    for number, one in enumerate(found):
        components = one["attribution"]["components"]
        places = [names.index(name) + (number - (len(found) - 1) / 2) * width for name in components]
        heights = [value["mean"] or 0 for value in components.values()]
        axes.bar(places, heights, width, color=OKABE_ITO[number % 8], label=one["job_id"][:12])
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axes.set(title="mean contribution to the token's logit")
    if len(found) > 1:
        axes.legend(fontsize=7)
    return figure


def tokens(grid: TokenGrid) -> Any:
    """The last columns of a grid: top tokens on the colour of their probability."""
    shown = grid.probabilities[:, -COLUMNS:]
    figure = new_figure(2 + 0.75 * shown.shape[1], 1 + 0.3 * len(grid.hooks))
    axes = figure.subplots()
    image = axes.imshow(shown, vmin=0, vmax=1, cmap="cividis", aspect="auto", origin="lower")
    for line, texts in enumerate(grid.texts):
        for place, text in enumerate(texts[-COLUMNS:]):
            colour = "black" if shown[line, place] > 0.6 else "white"
            axes.text(
                place, line, _printable(text), ha="center", va="center", fontsize=6, color=colour,
                parse_math=False,
            )  # fmt: skip
    axes.set_xticks(range(shown.shape[1]), [str(one) for one in grid.positions[-COLUMNS:]])
    axes.set_yticks(range(len(grid.hooks)), grid.hooks)
    axes.set(xlabel="token", title=f"{grid.session_id[:16]}: top next token of each hook")
    figure.colorbar(image, label="probability")
    return figure


def _printable(text: str) -> str:
    """A token's text in letters of the font; others are escaped."""
    letters = [
        one if (one.isprintable() and one <= _LAST_LETTER) or one in _SPACES else ascii(one)[1:-1]
        for one in text
    ]
    shown = "".join(letters)
    return shown if len(shown) <= LETTERS else shown[: LETTERS - 1] + "~"
