"""Nothing of an owner changes, whatever others send to whichever route: all rows and files are compared."""

from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from storage.artifacts.local import LocalStore
from storage.index.database import changed
from storage.tables.models import (
    ApiKeyRow,
    Base,
    CounterRow,
    DutyRow,
    ModelRow,
    QueuePauseRow,
    WorkerRow,
)

if TYPE_CHECKING:
    from tests.integration.api.conftest import Keyed
    from tests.integration.api.ownership.conftest import Things

pytestmark = pytest.mark.integration

ADMIN_ONLY = {"get_key", "update_key", "revoke_key", "delete_key"}
#: tables whose rows are nobody's, or whose queries name the owner themselves
SHARED_BY_ALL: set[type[Any]] = {
    WorkerRow, ModelRow, QueuePauseRow, CounterRow, ApiKeyRow, DutyRow,
}  # fmt: skip
#: rows that requests of anybody change
CHANGING = {"api_keys", "counters", "duties", "workers"}


def writing_routes(keyed: "Keyed") -> list[tuple[str, str, dict[str, Any]]]:
    """Every operation of the application that may write, with its description."""
    return [
        (method.upper(), path, operation)
        for path, operations in keyed.app.openapi()["paths"].items()
        for method, operation in operations.items()
        if method in ("post", "put", "patch", "delete")
    ]


def bodies_of(
    keyed: "Keyed", things: "Things", method: str, path: str, operation: dict[str, Any]
) -> list[dict[str, Any]]:
    """Every field of the request on its own, and all at once."""
    body = things.bodies.get((method, path), {})
    content = operation.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    if "$ref" in schema:
        schema = keyed.app.openapi()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "{" in path and operation["operationId"] not in ADMIN_ONLY:
        assert set(body) == set(schema.get("properties", {})), (
            f"{method} {path}: name every field in Things.bodies"
        )
    return [body, *({name: value} for name, value in body.items())]


def state(keyed: "Keyed") -> tuple[dict[tuple[str, Any], tuple[Any, ...]], dict[str, bytes]]:
    """Every row of every table, and every stored file."""
    rows = {}
    with keyed.database.engine.connect() as connection:
        for table in Base.metadata.sorted_tables:
            key = list(table.primary_key)
            for row in connection.execute(sa.select(*key, table)):
                if table.name not in CHANGING:
                    rows[table.name, tuple(row[: len(key)])] = tuple(row)
    store = keyed.services.store
    assert isinstance(store, LocalStore)
    files = {str(path): path.read_bytes() for path in store.root.rglob("*") if path.is_file()}
    return rows, files


def test_nothing_of_anybody_else_changes_whatever_is_sent(keyed: "Keyed", things: "Things") -> None:
    things.ids["batch_id"] = things.make_batch()
    rows, files = state(keyed)
    tables = {table for table, _ in rows}
    assert {"jobs", "samples", "sessions", "session_tags", "job_tags", "artifacts", "files"} <= tables
    assert len(files) > 3
    sent = 0
    for method, path, operation in writing_routes(keyed):
        address = things.place(path, things.ids)
        flags = [p["name"] for p in operation.get("parameters", []) if p["schema"].get("type") == "boolean"]
        queries: list[dict[str, str]] = [{}, {flag: "true" for flag in flags if flag != "dry_run"}]
        for query in queries:
            for body in bodies_of(keyed, things, method, path, operation):
                keyed.client.request(method, address, params=query, json=body, headers=things.bob)
                sent += 1
        rows_now, files_now = state(keyed)
        assert {key: rows_now.get(key) for key in rows} == rows, (method, path)
        assert {name: files_now.get(name) for name in files} == files, (method, path)
    assert sent > 50


def test_bulk_statements_about_foreign_ids_touch_nothing(keyed: "Keyed", things: "Things") -> None:
    """Statements of every table that hangs on an owned row, as of a route that does not look first."""
    things.make_batch()
    rows, _ = state(keyed)
    owned = {mapper.class_ for mapper in Base.registry.mappers} - SHARED_BY_ALL
    with keyed.database.restricted_to("bob").write() as session:
        for table in owned:
            assert session.execute(sa.select(sa.func.count()).select_from(table)).scalar_one() == 0, table
            column = sa.inspect(table).columns[0]
            assert changed(session.execute(sa.update(table).values({column.key: column}))) == 0, table
            assert changed(session.execute(sa.delete(table))) == 0, table
    assert state(keyed)[0] == rows
