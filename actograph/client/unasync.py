"""Make the plain client of the asynchronous one: `python actograph/client/unasync.py`.

`aio/*.py` is the source, `blocking/*.py` what comes of it; both are in the repository, and a test tells when
they differ. Only `runtime.py`, how one waits, is written twice. ruff puts the result into order.
"""

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parent
SOURCE, TARGET = CLIENT / "aio", CLIENT / "blocking"
BY_HAND = frozenset({"__init__.py", "runtime.py"})

_HEAD = "# Made of ../aio/{name} by `python actograph/client/unasync.py`: change that file, not this one.\n"
_SUBSTITUTIONS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"\bactograph\.client\.aio\b", "actograph.client.blocking"),
        (r"\basync (def|with|for)\b", r"\1"),
        (r"\bawait ", ""),
        (r"\bAwaitable\[([\w.]+(?:\[[^\[\]]*\])?)\]", r"\1"),
        (r", Awaitable\b|\bAwaitable, ", ""),
        (r"\bAsync(Iterator|Client|Iterable)\b", r"\1"),
        (r"\basynccontextmanager\b", "contextmanager"),
        (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
        (r"\ba(close|read|iter_lines|iter_bytes)\(", r"\1("),
        (r"\bas coroutines\b", "as Python calls"),
        (r"\bseveral tasks\b", "several threads"),
    ]
]


def plain(text: str) -> str:
    """The text of a module that waits for each answer, for that of one of coroutines."""
    for pattern, replacement in _SUBSTITUTIONS:
        text = pattern.sub(replacement, text)
    return text


def generated() -> dict[Path, str]:
    """Path -> text of every generated module."""
    made = {}
    for path in sorted(SOURCE.glob("*.py")):
        if path.name in BY_HAND:
            continue
        target = TARGET / path.name
        text = plain(path.read_text(encoding="utf-8"))
        made[target] = _in_order(_HEAD.format(name=path.name) + text, target)
    return made


def _in_order(text: str, path: Path) -> str:
    for command in (
        ["check", "--select", "I,F401", "--fix-only", "--quiet"],
        ["format", "--quiet"],
    ):
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"],
            input=text, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    return text


def main() -> None:
    """Write what differs and remove what has no source any more."""
    made = generated()
    for path in TARGET.glob("*.py"):
        if path.name not in BY_HAND and path not in made:
            path.unlink()
    for path, text in made.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
