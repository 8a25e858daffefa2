"""Names of served models: `M` is a hub id or a folder, `NAME=M` gives it a name."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    #: name in answers and in the index
    name: str
    #: hub id or folder
    source: str
    #: all names that jobs may use
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


def short(name: str) -> str:
    """Return the last part of a folder's path, which names the model too; other names as they are."""
    path = Path(name)
    return path.resolve().name if path.is_absolute() and path.is_dir() else name
