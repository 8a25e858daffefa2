"""Keys that turn up where they do not belong: in a path or a name, pasted by mistake."""

import logging
import re

from storage.api_keys import PREFIX

_KEY = re.compile(rf"{PREFIX}[0-9a-fA-F]{{6,}}")


def redact(text: str) -> str:
    """The text with all but the beginning of every key of ours left out."""
    return _KEY.sub(f"{PREFIX}[redacted]", text) if PREFIX in text else text


class RedactingFormatter(logging.Formatter):
    """Lines without keys, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))
