"""Redaction of secrets in logs and errors, such as a key in a path or a password in a driver's message.

Redacts keys of the settings, passwords in URLs, and all texts in the form of an API key or of a password in a
URL.
"""

import logging
import os
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus, unquote

from actograph.contract.operations import KEY_PREFIX
from actograph.settings import Settings

REDACTED = "[redacted]"
#: shorter secrets could be parts of words
LEAST_CHARACTERS = 8
#: environment variables with secrets
_VARIABLES = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_PASSWORD = re.compile(r"://[^/?#\s]*?:(.+)@")

_KEY = re.compile(rf"{KEY_PREFIX}[0-9a-fA-F]{{6,}}")
_PATTERNS = (
    (_KEY, f"{KEY_PREFIX}{REDACTED}"),
    (re.compile(r"(?i)\b(bearer(?:\s|%20|\+)+)[^\s\"',;&]+"), rf"\1{REDACTED}"),
    (re.compile(r"(://[^/?#\s@:\[\]]*:)[^/?#\s@]+(?=@)"), rf"\1{REDACTED}"),
    (
        re.compile(r"(?i)([?&](?:api[_-]?key|key|token|access[_-]token|password|secret)=)[^&\s\"']+"),
        rf"\1{REDACTED}",
    ),
)
#: the values of a refused row in errors of Postgres
_ROW_DETAIL = re.compile(
    r"(?s)(DETAIL: +).*?(?=(?:\n|\\n)(?:CONTEXT:|HINT:|\[SQL|Traceback|\n?The above|\n?During handling)|\Z)"
)
_known: tuple[str, ...] = ()


def conceal(settings: Settings) -> None:
    """Register the secrets of these settings and of the environment for `redact`."""
    urls = (settings.database_url, settings.broker_url, settings.artifact_url)
    found = [
        *settings.api_keys,
        settings.supervisor_key,
        settings.api_key,
        *(match[1] for match in map(_PASSWORD.search, urls) if match is not None),
        *(os.environ.get(name, "") for name in _VARIABLES),
    ]
    _know(found)


def _know(secrets: Iterable[str]) -> None:
    global _known  # noqa: PLW0603 (the secrets of a process, for its one log)
    forms = set(_known)
    for secret in secrets:
        if len(secret) >= LEAST_CHARACTERS:
            forms |= {secret, unquote(secret), quote(secret), quote(secret, safe=""), quote_plus(secret)}
    # longest first, since one may be part of another
    _known = tuple(sorted(forms, key=len, reverse=True))


def redact(text: str) -> str:
    """The text without secrets; of an API key the prefix stays."""
    for secret in _known:
        text = text.replace(secret, REDACTED)
    for pattern, shown in _PATTERNS:
        text = pattern.sub(shown, text)
    return _ROW_DETAIL.sub(rf"\1{REDACTED}", text) if "DETAIL: " in text else text


class RedactingFormatter(logging.Formatter):
    """Log lines without secrets, also in tracebacks; each message is a single line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        record.message = "".join(
            char if char.isprintable() else char.encode("unicode_escape").decode() for char in record.message
        )
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def set_up_logging(settings: Settings) -> None:
    """Log all messages of this process to stderr, without secrets."""
    conceal(settings)
    logging.basicConfig(level=settings.log_level.upper())
    for handler in logging.getLogger().handlers:
        handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
