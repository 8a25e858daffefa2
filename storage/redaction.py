"""Redaction of secrets in logs and errors, such as a key in a path or a password in a driver's message.

Redacts keys of the settings, passwords in URLs, and all texts in the form of an API key or of a password in a
URL.
"""

import json
import logging
import os
import re
from datetime import UTC, datetime
from urllib.parse import quote, quote_plus, unquote

from actograph.contract.operations import KEY_PREFIX
from actograph.settings import Settings

REDACTED = "[redacted]"
#: shorter secrets could be parts of words
LEAST_CHARACTERS = 8
#: environment variables with secrets
_VARIABLES = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_PASSWORD = re.compile(r"://[^/?#\s]*?:(.+)@")

_PATTERNS = (
    (re.compile(rf"{KEY_PREFIX}[0-9a-fA-F]{{6,}}"), f"{KEY_PREFIX}{REDACTED}"),
    (re.compile(r"(?i)\b(bearer(?:\s|%20|\+)+)[^\s\"',;&]+"), rf"\1{REDACTED}"),
    (re.compile(r"(://[^/?#\s@:\[\]]*:)[^/?#\s@]+(?=@)"), rf"\1{REDACTED}"),
    (re.compile(r"(?i)([?&](?:api_?key|token|password|secret)=)[^&\s\"']+"), rf"\1{REDACTED}"),
)
_known: tuple[str, ...] = ()


def conceal(settings: Settings) -> None:
    """Register the secrets of these settings and of the environment for `redact`."""
    global _known  # noqa: PLW0603 (the secrets of a process, for its one log)
    urls = (
        settings.database_url,
        settings.listen_database_url,
        settings.broker_url,
        settings.artifact_url,
    )
    passwords = [match[1] for match in map(_PASSWORD.search, urls) if match is not None]
    secrets = [*settings.api_keys, settings.supervisor_key, settings.api_key, *passwords]
    forms = set(_known)
    for secret in [*secrets, *(os.environ.get(name, "") for name in _VARIABLES)]:
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
    return text


#: prefix of an id -> its name in a JSON line
_IDS = {"job": "job", "smp": "sample", "ses": "session", "wrk": "worker", "batch": "batch"}
_ID = re.compile(rf"\b({'|'.join(_IDS)})_[0-9a-f]{{32}}\b")


class RedactingFormatter(logging.Formatter):
    """Log lines without secrets, also in tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


class JsonFormatter(logging.Formatter):
    """Log lines as JSON objects, without secrets, with the ids that a line speaks of."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        message = redact(record.getMessage())
        line = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        if identifier := getattr(record, "request_id", ""):
            line["request"] = identifier
        for found in _ID.finditer(message):
            line.setdefault(_IDS[found[1]], found[0])
        if record.exc_info:
            line["exception"] = redact(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


def set_up_logging(settings: Settings) -> None:
    """Log all messages of this process to stderr, without secrets."""
    conceal(settings)
    logging.basicConfig(level=settings.log_level.upper())
    formatter: logging.Formatter = JsonFormatter()
    if settings.log_format == "text":
        formatter = RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        handler.setFormatter(formatter)
