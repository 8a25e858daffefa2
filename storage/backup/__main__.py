"""`python -m storage.backup save|restore FOLDER`: what `actograph backup` and `restore` run on the server.

Prints the record of the backup as JSON.
"""

import argparse
import sys
from pathlib import Path

from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from actograph.contract.errors import ActographError
from actograph.redaction import conceal, redact
from actograph.settings import Settings
from storage.artifacts.factory import open_store
from storage.backup import backup
from storage.index.database import Database


def main(arguments: list[str] | None = None) -> int:
    """Run a command line. Returns 0, 1 for an error, or 3 if stored files are damaged."""
    parser = argparse.ArgumentParser(prog="python -m storage.backup", description=__doc__)
    parser.add_argument("command", choices=("save", "restore"))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    try:
        settings = Settings()
        conceal(settings)
        store = open_store(settings.effective_artifact_url)
        database = Database(settings.effective_database_url)
        try:
            work = backup.save if options.command == "save" else backup.restore
            record = work(database, store, options.folder.absolute())
        finally:
            database.close()
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except SQLAlchemyError as error:
        reason = f"the database cannot be used: {type(error).__name__}"
    except (ActographError, ValueError, OSError) as error:
        reason = str(error)
    else:
        sys.stdout.write(record.model_dump_json(exclude={"tables"}) + "\n")
        return 3 if record.damaged else 0
    sys.stderr.write(f"error: {redact(reason)}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
