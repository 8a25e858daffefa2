"""The broker of a running `up`: its port and password."""

from pathlib import Path


def broker_of(home: Path) -> tuple[int, str]:
    """Port and password of the broker of the service that lives in `home`."""
    config = (home / "redis" / "redis.conf").read_text(encoding="utf-8")
    values = dict(line.split(maxsplit=1) for line in config.splitlines())
    return int(values["port"]), values["requirepass"]
