"""The page of environment variables, from `actograph.settings`."""

from typing import Any

from actograph.settings import Settings
from docs.generate.markdown import cell, code, heading, table

INTRODUCTION = """\
Every process reads its settings from the environment. `actograph up` passes your environment to its
processes; its own options win. A file in `/run/secrets` (or in
`ACTOGRAPH_SECRETS_DIR`) with a variable's name in lower case, such as `actograph_api_keys`, does as well; the
environment wins."""
CLOSING = """\
S3 credentials and endpoint come from the usual AWS variables: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
`AWS_DEFAULT_REGION` and `AWS_ENDPOINT_URL_S3`. The worker also reads Hugging Face's variables: `HF_HOME`,
`HF_TOKEN` and `HF_HUB_OFFLINE`."""


def default(name: str, field: Any) -> str:
    """The default as it is typed into a shell."""
    if name == "home":
        return "~/.actograph"
    value = field.default
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value in (None, ()) else str(value)


def page() -> str:
    """Build the page."""
    rows = [
        (f"`ACTOGRAPH_{name.upper()}`", code(default(name, field)), cell(field.description or ""))
        for name, field in Settings.model_fields.items()
    ]
    return heading("Settings", INTRODUCTION) + table(("variable", "default", "meaning"), rows) + CLOSING
