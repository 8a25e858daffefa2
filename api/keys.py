"""`actograph service create-key`: create keys on the server itself, without a running service.

Use it for the first key of a service that other machines reach, and after losing the last admin's key. It
needs direct access to the database.
"""

import argparse
import sys

from sqlalchemy.exc import SQLAlchemyError

from actograph.contract.errors import ActographError
from actograph.contract.operations import NewKey
from actograph.contract.roles import Role
from actograph.settings import Settings
from api.errors import refusal_of
from storage import migrate
from storage.accounts import api_keys
from storage.index.database import Database
from storage.redaction import conceal


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="actograph service create-key", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    create = commands.add_parser("create", help="create a key and print it")
    create.add_argument("name")
    create.add_argument("--role", choices=[str(role) for role in Role], default=str(Role.ADMIN))
    create.add_argument("--owner", help="owner of its jobs and sessions")
    options = parser.parse_args(arguments)
    try:
        settings = Settings()
        conceal(settings)
        database = Database(settings.effective_database_url)
        try:
            migrate.require_current(database)
            return _run(database, options)
        finally:
            database.close()
    except (ActographError, SQLAlchemyError, ValueError, OSError) as error:
        sys.stderr.write(f"actograph service create-key: {refusal_of(error)}\n")
        return 1


def _run(database: Database, options: argparse.Namespace) -> int:
    new = NewKey(name=options.name, role=options.role, owner=options.owner)
    with database.write() as session:
        row, key = api_keys.create(session, new, needs_admin=False)
    sys.stderr.write(f"{row.id}: {row.role} of {row.owner}; the key is shown only once\n")
    sys.stdout.write(f"{key}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
