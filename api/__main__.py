"""`python -m api`: serve until a signal ends it."""

import logging
import signal
import sys
import time
from types import FrameType

import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from actograph.contract.errors import ActographError
from actograph.settings import Settings
from api.app import create_app, open_services
from api.auth import is_loopback
from api.dependencies import Services
from storage.database import is_away

#: open event streams end at once; a download may go on for so long
GRACE_SECONDS = 5
#: a database that is away at the start is waited for so long
DATABASE_SECONDS = 5.0


class Server(uvicorn.Server):
    """uvicorn, with event streams told to end as soon as the signal comes."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        services = getattr(self._app.state, "services", None)
        if services is not None:
            services.stopping.set()
        super().handle_exit(sig, frame)


def main() -> int:
    try:
        settings = Settings()
    except ValidationError as error:
        first = error.errors()[0]
        return _refuse(f"setting {'.'.join(map(str, first['loc']))}: {first['msg']}")
    if not settings.api_keys and not is_loopback(settings.host):
        return _refuse(
            f"without API keys only loopback is served, and the host is {settings.host}; "
            "set ACTOGRAPH_API_KEYS or ACTOGRAPH_HOST=127.0.0.1"
        )
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # at info it announces itself with every look at the schema
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        services = _open_patiently(settings)
    except (ActographError, ValueError, OSError) as error:
        return _refuse(str(error))
    except SQLAlchemyError as error:
        return _refuse(f"the database cannot be used: {error.__class__.__name__}: {error.args[0]}")
    services.broker.close()
    services.database.close()
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = Server(config, app)
    server.run()
    return 0 if server.started else 1


def _open_patiently(settings: Settings) -> Services:
    """Open everything; a database server that is being restarted is waited for."""
    deadline = time.monotonic() + DATABASE_SECONDS
    while True:
        try:
            return open_services(settings)
        except DBAPIError as error:
            if not is_away(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def _refuse(reason: str) -> int:
    sys.stderr.write(f"actograph api: {' '.join(reason.split())}\n")
    return 1


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.exit(main())
