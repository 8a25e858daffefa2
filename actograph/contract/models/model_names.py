"""How a served model is named: `M` is a hub id or a folder, `NAME=M` gives it a name."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    #: the name that the service shows and stores
    name: str
    #: hub id or folder that transformers loads
    source: str
    #: every name under which a job may ask for it
    aliases: frozenset[str]


def parse(text: str) -> ServedModel:
    """Read `M` or `NAME=M`. A folder is also served under its last part."""
    name, separator, source = text.partition("=")
    if not separator:
        name, source = text, text
    aliases = {name, source}
    if Path(source).is_dir():
        aliases.add(Path(source).resolve().name)
    return ServedModel(name=name, source=source, aliases=frozenset(aliases))
