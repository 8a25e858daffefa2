"""`actograph service api`: serve until a signal arrives."""

import signal
import sys

import uvicorn
from sqlalchemy.exc import SQLAlchemyError

from actograph.contract.errors import ActographError, InvalidRequest
from actograph.service_urls import is_loopback
from actograph.settings import Settings
from api.app import open_services, process_app
from api.dependencies import Services
from api.errors import refusal_of
from storage import redaction
from storage.accounts import api_keys

#: time that downloads get to finish after a signal; event streams end at once
GRACE_SECONDS = 5


def main() -> int:
    try:
        settings = Settings()
        redaction.set_up_logging(settings)
        services = open_services(settings)
        try:
            _require_keys(settings, services)
        finally:
            services.broker.close()
            services.database.close()
    except (ActographError, SQLAlchemyError, ValueError, OSError) as error:
        sys.stderr.write(f"actograph api: {refusal_of(error)}\n")
        return 1
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
        "`actograph service create-key NAME`, or set ACTOGRAPH_API_KEYS or ACTOGRAPH_HOST=127.0.0.1"
    )


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.exit(main())
