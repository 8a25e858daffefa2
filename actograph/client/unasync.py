"""Generate the blocking client from the asynchronous one: `python actograph/client/unasync.py`.

`aio/` is the source and `blocking/` is generated. Both are in the repository; a test compares them.
Only `runtime.py` is written twice. ruff formats the result.
"""

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parent
SOURCE, TARGET = CLIENT / "aio", CLIENT / "blocking"
BY_HAND = frozenset({"__init__.py", "runtime.py"})

_HEAD = "# Generated from aio/{name} by `python actograph/client/unasync.py`: edit that file.\n"
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
    """Convert the text of a module of coroutines to plain calls."""
    for pattern, replacement in _SUBSTITUTIONS:
        text = pattern.sub(replacement, text)
    return text


def generated() -> dict[Path, str]:
    """Text of every generated module, by path."""
    modules = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE)
        if str(name) not in BY_HAND:
            target = TARGET / name
            text = plain(path.read_text(encoding="utf-8"))
            modules[target] = _formatted(_HEAD.format(name=name) + text, target)
    return modules


def existing() -> set[Path]:
    """Paths of the generated modules in the repository."""
    return {path for path in TARGET.rglob("*.py") if str(path.relative_to(TARGET)) not in BY_HAND}


def _formatted(text: str, path: Path) -> str:
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
    """Write changed modules and delete those without a source."""
    modules = generated()
    for path in existing() - modules.keys():
        path.unlink()
    for path, text in modules.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
