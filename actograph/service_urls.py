"""URLs of the database and the broker, checked before a driver sees them.

The errors never show the URL, which may have a password.
"""

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

#: spellings of Postgres that other programs accept
_POSTGRES = ("postgres", "postgresql", "postgresql+psycopg")
_DATABASE_FORMS = "sqlite:////folder/actograph.db or postgresql://USER:PASSWORD@HOST:5432/DATABASE"
_BROKER_FORMS = "redis://:PASSWORD@HOST:6379/0, or rediss:// for TLS"
_ENCODE = "percent-encode special characters of the user and the password (/ is %2F, @ is %40, # is %23)"


def database_url(url: str) -> str:
    """The URL in SQLAlchemy's form, with the driver that Actograph uses.

    Raises:
        ValueError: the URL cannot name a database of Actograph; the message says what to write.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite" and rest.startswith("/"):
        return url
    if scheme not in _POSTGRES:
        raise ValueError(f"{_named(scheme, url)} is no database of Actograph: write {_DATABASE_FORMS}")
    # SQLAlchemy ends the password at the first @, whatever stands before it
    address = rest.partition("@")[2] or rest
    if "@" in address.partition("?")[0]:
        raise ValueError(f"the URL has more than one @; {_ENCODE}: {_DATABASE_FORMS}")
    parts = _split(f"{scheme}://{address}", _DATABASE_FORMS)
    if not parts.path.strip("/"):
        raise ValueError(f"the URL names no database: write {_DATABASE_FORMS}")
    if re.search(r"(?:^|&)prepare_threshold=", parts.query):
        raise ValueError(
            "remove prepare_threshold: Actograph prepares no statements, so pgbouncer needs no option"
        )
    return f"postgresql+psycopg://{rest}"


def broker_url(url: str) -> str:
    """The URL of a Redis server.

    Raises:
        ValueError: the URL cannot name a broker of Actograph; the message says what to write.
    """
    scheme = url.partition("://")[0]
    if scheme not in ("redis", "rediss"):
        raise ValueError(f"{_named(scheme, url)} is no broker of Actograph: write {_BROKER_FORMS}")
    parts = _split(url, _BROKER_FORMS)
    if not re.fullmatch(r"/?\d*", parts.path):
        raise ValueError(f"the path of the URL is no database number; {_ENCODE}: {_BROKER_FORMS}")
    return url


def _split(url: str, forms: str) -> SplitResult:
    """Split a URL with a host."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError(f"host or port cannot be read; {_ENCODE}: {forms}") from None
    if "#" in url or "@" in parts.path:
        raise ValueError(f"the URL ends before its host; {_ENCODE}: {forms}")
    if not parts.hostname and "host=" not in parts.query:
        raise ValueError(f"the URL names no host: write {forms}")
    return parts


def _named(scheme: str, url: str) -> str:
    return f"{scheme}://" if "://" in url else "a URL without a scheme"


def is_loopback(host: str | None) -> bool:
    """True if a host is a loopback address or `localhost`."""
    if not host:
        return False
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
