"""`actograph service upkeep`: repair the index and remove what is past its time, until a signal arrives.

One such process serves an index, and several take turns. It holds no model and serves no request.
"""

import logging
import signal
import sys
import threading

from sqlalchemy.exc import SQLAlchemyError

from actograph.contract.errors import ActographError
from actograph.settings import settings_or_exit
from storage import migrate, redaction
from storage.artifacts.factory import open_store
from storage.broker.hints import HintSender
from storage.index import deployment
from storage.index.database import Database
from storage.upkeep.reconcile import Reconciler


def main() -> int:
    """Run until SIGTERM or SIGINT. Returns 1 if it cannot work with this index or store."""
    settings = settings_or_exit("upkeep")
    redaction.set_up_logging(settings)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    stop = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    database = Database.of(settings)
    try:
        migrate.require_current(database)
        deployment.check_store(database, settings.effective_artifact_url)
        store = open_store(settings.effective_artifact_url)
    except (ActographError, SQLAlchemyError, ValueError, OSError) as error:
        # one line: `actograph up` shows the last one
        sys.stderr.write(f"upkeep: {' '.join(str(error).split())}\n")
        return 1
    database.announce = HintSender(settings.broker_url)
    Reconciler(settings, database, store, stop).run()
    database.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
