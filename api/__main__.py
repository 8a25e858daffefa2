"""`python -m api`: serve until a signal arrives."""

import signal
import sys

import uvicorn
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from actograph.contract.errors import ActographError, InvalidRequest
from actograph.loopback import is_loopback
from actograph.redaction import redact
from actograph.settings import Settings
from api.app import open_services, process_app, set_up_logging
from api.dependencies import Services
from storage.accounts import api_keys

#: time that downloads get to finish after a signal; event streams end at once
GRACE_SECONDS = 5


def main() -> int:
    try:
        settings = Settings()
    except ValidationError as error:
        first = error.errors()[0]
        return _refuse(f"setting {'.'.join(map(str, first['loc']))}: {first['msg']}")
    set_up_logging(settings)
    try:
        services = open_services(settings)
        try:
            _require_keys(settings, services)
        finally:
            services.broker.close()
            services.database.close()
    except (ActographError, ValueError, OSError) as error:
        return _refuse(str(error))
    except SQLAlchemyError as error:
        return _refuse(f"the database cannot be used: {error.__class__.__name__}: {error.args[0]}")
    uvicorn.run(
        f"{process_app.__module__}:{process_app.__name__}",
        factory=True,
        host=settings.host,
        port=settings.port,
        workers=settings.api_processes,
        log_config=None,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return 0


def _require_keys(settings: Settings, services: Services) -> None:
    """Raises InvalidRequest if other machines would be served without a key."""
    if settings.api_keys or is_loopback(settings.host):
        return
    with services.database.read() as session:
        if api_keys.exist(session):
            return
    raise InvalidRequest(
        f"without API keys only loopback is served, but the host is {settings.host}; create a key with "
        "`python -m api.keys create`, or set ACTOGRAPH_API_KEYS or ACTOGRAPH_HOST=127.0.0.1"
    )


def _refuse(reason: str) -> int:
    sys.stderr.write(f"actograph api: {redact(' '.join(reason.split()))}\n")
    return 1


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.exit(main())
