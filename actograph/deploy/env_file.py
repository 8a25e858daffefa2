"""Environment files: `NAME=value` lines, with `#` comments."""

import re
from pathlib import Path

from actograph.contract.errors import InvalidRequest

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_env(path: Path) -> dict[str, str]:
    """Read an environment file. Quotes around a value are removed; nothing is expanded.

    Raises:
        InvalidRequest: a line is no `NAME=value`; the message does not show it, as it may be a secret.
        OSError: the file cannot be read.
    """
    found = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.strip().removeprefix("export ")
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise InvalidRequest(f"{path}:{number}: not a line NAME=value")
        is_quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "'\""
        found[name] = value[1:-1] if is_quoted else value
    return found
