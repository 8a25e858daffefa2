"""Alembic's entry point. The connection is handed in by storage/migrate.py."""

from alembic import context

from storage.tables.models import Base

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    render_as_batch=connection.dialect.name == "sqlite",
    compare_type=True,
    compare_server_default=True,
    transactional_ddl=True,
    # an index that is created concurrently cannot be part of a transaction
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
