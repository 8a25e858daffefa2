"""API keys, owners of vectors, and idempotency keys of each owner"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

ANSWERS = ("key", "digest", "created_at", "status_code", "response")


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("prefix", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("last_used_at", sa.Double(), nullable=True),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.Column("quota_bytes", sa.BigInteger(), nullable=True),
        sa.Column("requests_per_minute", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("sha256", name=op.f("uq_api_keys_sha256")),
    )
    op.create_index(op.f("ix_api_keys_owner"), "api_keys", ["owner"])
    op.add_column("vectors", sa.Column("owner", sa.String(length=64), nullable=True))
    op.create_index("ix_jobs_owner_created_at_id", "jobs", ["owner", "created_at", "id"])
    # whose the stored answers are is not known: they stay valid where there are no keys
    _answers_anew(sa.Column("owner", sa.String(length=64), nullable=False), extra=", 'local'")


def downgrade() -> None:
    _answers_anew()
    op.drop_index("ix_jobs_owner_created_at_id", "jobs")
    op.drop_column("vectors", "owner")
    op.drop_index(op.f("ix_api_keys_owner"), "api_keys")
    op.drop_table("api_keys")


def _answers_anew(*owner: sa.Column[str], extra: str = "") -> None:
    """Another primary key needs another table; nothing refers to this one."""
    op.rename_table("idempotency_keys", "idempotency_keys_before")
    if op.get_context().dialect.name == "postgresql":  # the name of a constraint lives on with its table
        op.execute("ALTER INDEX pk_idempotency_keys RENAME TO pk_idempotency_keys_before")
    names = [*(column.name for column in owner), "key"]
    op.create_table(
        "idempotency_keys",
        *owner,
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("status_code", sa.Integer(), nullable=True),
        sa.Column("response", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint(*names, name=op.f("pk_idempotency_keys")),
    )
    columns = ", ".join(ANSWERS)
    kept = "" if owner else " WHERE owner = 'local'"
    target = f"{columns}, owner" if owner else columns
    op.execute(
        f"INSERT INTO idempotency_keys ({target}) SELECT {columns}{extra} FROM idempotency_keys_before{kept}"
    )
    op.drop_table("idempotency_keys_before")
