"""`python -m api.keys`: create and revoke keys on the server itself, without a running service.

Use it for the first key of a service that other machines reach, and after losing the last admin's key. It
needs direct access to the database.
"""

import argparse
import sys
import time

from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from actograph.contract.errors import ActographError
from actograph.contract.operations import NewKey
from actograph.redaction import conceal, redact
from actograph.roles import Role
from actograph.settings import Settings
from storage import migrate
from storage.accounts import api_keys
from storage.index.database import Database


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m api.keys", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    create = commands.add_parser("create", help="create a key and print it")
    create.add_argument("name")
    create.add_argument("--role", choices=[str(role) for role in Role], default=str(Role.ADMIN))
    create.add_argument("--owner", help="owner of its jobs and sessions")
    commands.add_parser("ls", help="list the keys")
    commands.add_parser("check", help="exit with 0 if requests need a key, else with 3")
    revoke = commands.add_parser("revoke", help="revoke a key for good")
    revoke.add_argument("id")
    options = parser.parse_args(arguments)
    try:
        settings = Settings()
        conceal(settings)
        database = Database(settings.effective_database_url)
        try:
            migrate.require_current(database)
            return _run(settings, database, options)
        finally:
            database.close()
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except SQLAlchemyError as error:
        reason = f"the database cannot be used: {type(error).__name__}"
    except (ActographError, ValueError, OSError) as error:
        reason = str(error)
    sys.stderr.write(f"python -m api.keys: {redact(reason)}\n")
    return 1


def _run(settings: Settings, database: Database, options: argparse.Namespace) -> int:
    if options.command == "create":
        new = NewKey(name=options.name, role=options.role, owner=options.owner)
        with database.write() as session:
            row, key = api_keys.create(session, new, needs_admin=False)
        sys.stderr.write(f"{row.id}: {row.role} of {row.owner}; the key is shown only once\n")
        sys.stdout.write(f"{key}\n")
    elif options.command == "revoke":
        with database.write() as session:
            row = api_keys.revoke(session, options.id, needs_admin=False)
            locked_out = not (settings.api_keys or api_keys.has_admin(session))
        sys.stdout.write(f"{row.id}\n")
        if locked_out:
            sys.stderr.write(
                "no admin key is left, so nobody can create keys through the service; create one with "
                "`python -m api.keys create NAME`\n"
            )
    elif options.command == "check":
        with database.read() as session:
            return 0 if api_keys.exist(session) else 3
    else:
        with database.read() as session:
            for row in api_keys.find(session, limit=10_000, order="asc")[0]:
                has_expired = row.expires_at is not None and row.expires_at <= time.time()
                state = "revoked" if row.revoked_at is not None else "expired" if has_expired else "good"
                sys.stdout.write(f"{row.id}  {row.prefix}...  {row.role}  {row.owner}  {state}  {row.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
