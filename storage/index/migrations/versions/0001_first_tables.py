"""The tables at first."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


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
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("sha256", name=op.f("uq_api_keys_sha256")),
    )
    with op.batch_alter_table("api_keys", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_api_keys_owner"), ["owner"], unique=False)

    op.create_table(
        "counters",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", "kind", "status", name=op.f("pk_counters")),
    )
    op.create_table(
        "files",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("filename", sa.String(length=255), nullable=False),
        sa.Column("purpose", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("doomed_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_files")),
    )
    with op.batch_alter_table("files", schema=None) as batch_op:
        batch_op.create_index("ix_files_created_at_id", ["created_at", "id"], unique=False)
        batch_op.create_index(
            "ix_files_doomed_at",
            ["doomed_at"],
            unique=False,
            sqlite_where=sa.text("doomed_at IS NOT NULL"),
            postgresql_where=sa.text("doomed_at IS NOT NULL"),
        )
        batch_op.create_index("ix_files_expires_at", ["expires_at"], unique=False)
        batch_op.create_index("ix_files_owner_created_at_id", ["owner", "created_at", "id"], unique=False)

    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("model", sa.String(length=1024), nullable=False),
        sa.Column("spec", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=True),
        sa.Column("completed", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("error", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("hooks", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("pinned", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("identity_sha256", sa.String(length=64), nullable=True),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("deadline_at", sa.Double(), nullable=True),
        sa.Column("served_at", sa.Double(), nullable=False),
        sa.Column("pending", sa.Integer(), nullable=False),
        sa.Column("logged_at", sa.Double(), nullable=False),
        sa.Column("failed_in_a_row", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("doomed_at", sa.Double(), nullable=True),
        sa.Column("idempotency_key", sa.String(length=255), nullable=True),
        sa.Column("idempotency_sha256", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index("ix_jobs_created_at_id", ["created_at", "id"], unique=False)
        batch_op.create_index(
            "ix_jobs_doomed_at",
            ["doomed_at"],
            unique=False,
            sqlite_where=sa.text("doomed_at IS NOT NULL"),
            postgresql_where=sa.text("doomed_at IS NOT NULL"),
        )
        batch_op.create_index("ix_jobs_kind_created_at_id", ["kind", "created_at", "id"], unique=False)
        batch_op.create_index(
            "ix_jobs_owner_bytes",
            ["owner", "bytes"],
            unique=False,
            sqlite_where=sa.text("bytes > 0"),
            postgresql_where=sa.text("bytes > 0"),
        )
        batch_op.create_index("ix_jobs_owner_created_at_id", ["owner", "created_at", "id"], unique=False)
        batch_op.create_index("ix_jobs_status_created_at_id", ["status", "created_at", "id"], unique=False)
        batch_op.create_index(
            "ix_jobs_order",
            ["model", "priority", "served_at", "created_at", "id"],
            unique=False,
            sqlite_where=sa.text("pending > 0"),
            postgresql_where=sa.text("pending > 0"),
        )
        batch_op.create_index("uq_jobs_owner_idempotency_key", ["owner", "idempotency_key"], unique=True)

    op.create_table(
        "models",
        sa.Column("name", sa.String(length=1024), nullable=False),
        sa.Column("structure", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("loaded_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_models")),
    )
    op.create_table(
        "state",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_state")),
    )
    op.create_table(
        "vectors",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("hook", sa.String(length=256), nullable=False),
        sa.Column("model", sa.String(length=1024), nullable=True),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("details", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_vectors")),
    )
    with op.batch_alter_table("vectors", schema=None) as batch_op:
        batch_op.create_index("ix_vectors_created_at_id", ["created_at", "id"], unique=False)
        batch_op.create_index("ix_vectors_owner_created_at_id", ["owner", "created_at", "id"], unique=False)

    op.create_table(
        "workers",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("hostname", sa.String(length=255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("model", sa.String(length=1024), nullable=True),
        sa.Column("identity_sha256", sa.String(length=64), nullable=True),
        sa.Column("device", sa.String(length=64), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("heartbeat_at", sa.Double(), nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=True),
        sa.Column("error", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("memory", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("served", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_table(
        "batches",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("input_file_id", sa.String(length=64), nullable=False),
        sa.Column("request", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("model", sa.String(length=1024), nullable=True),
        sa.Column("job_id", sa.String(length=64), nullable=True),
        sa.Column("errors", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("counts", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("output_file_id", sa.String(length=64), nullable=True),
        sa.Column("error_file_id", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("moments", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=True),
        sa.Column("idempotency_sha256", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_batches_job_id_jobs"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
    )
    with op.batch_alter_table("batches", schema=None) as batch_op:
        batch_op.create_index("ix_batches_created_at_id", ["created_at", "id"], unique=False)
        batch_op.create_index("ix_batches_job_id", ["job_id"], unique=False)
        batch_op.create_index(
            "ix_batches_open",
            ["created_at", "id"],
            unique=False,
            sqlite_where=sa.text("status IN ('validating', 'in_progress', 'finalizing', 'cancelling')"),
            postgresql_where=sa.text("status IN ('validating', 'in_progress', 'finalizing', 'cancelling')"),
        )
        batch_op.create_index("ix_batches_owner_created_at_id", ["owner", "created_at", "id"], unique=False)
        batch_op.create_index("uq_batches_owner_idempotency_key", ["owner", "idempotency_key"], unique=True)

    op.create_table(
        "events",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("event", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("data", sa.JSON(none_as_null=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_events_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.create_index("ix_events_job_id_id", ["job_id", "id"], unique=False)

    op.create_table(
        "job_tags",
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("tag", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_tags_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "tag", name=op.f("pk_job_tags")),
    )
    with op.batch_alter_table("job_tags", schema=None) as batch_op:
        batch_op.create_index("ix_job_tags_tag", ["tag"], unique=False)

    op.create_table(
        "samples",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("sample_index", sa.Integer(), nullable=False),
        sa.Column("condition", sa.String(length=64), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("lease_token", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(length=64), nullable=True),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("input", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("prompt", sa.String(), nullable=True),
        sa.Column("completion", sa.String(), nullable=True),
        sa.Column("finish_reason", sa.String(length=16), nullable=True),
        sa.Column("prompt_tokens", sa.Integer(), nullable=True),
        sa.Column("generated_tokens", sa.Integer(), nullable=True),
        sa.Column("seed", sa.BigInteger(), nullable=True),
        sa.Column("scores", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("tool_use", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("messages", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("logprobs", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("error", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("session_id", sa.String(length=64), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_samples_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_samples")),
        sa.UniqueConstraint("job_id", "position", name=op.f("uq_samples_job_id_position")),
        sa.UniqueConstraint(
            "job_id",
            "sample_index",
            "condition",
            "epoch",
            name=op.f("uq_samples_job_id_sample_index_condition_epoch"),
        ),
    )
    with op.batch_alter_table("samples", schema=None) as batch_op:
        batch_op.create_index(
            "ix_samples_job_id_status_position", ["job_id", "status", "position"], unique=False
        )
        batch_op.create_index(
            "ix_samples_worker_id_leased",
            ["worker_id"],
            unique=False,
            sqlite_where=sa.text("status = 'leased'"),
            postgresql_where=sa.text("status = 'leased'"),
        )

    op.create_table(
        "sessions",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("sample_id", sa.String(length=64), nullable=False),
        sa.Column("sample_index", sa.Integer(), nullable=False),
        sa.Column("condition", sa.String(length=64), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("model", sa.String(length=1024), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("generated_tokens", sa.Integer(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("dtype", sa.String(length=16), nullable=False),
        sa.Column("hooks", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("files", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("correct", sa.Boolean(), nullable=True),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("identity_sha256", sa.String(length=64), nullable=True),
        sa.Column("pinned", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("doomed_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_sessions_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
    )
    with op.batch_alter_table("sessions", schema=None) as batch_op:
        batch_op.create_index("ix_sessions_created_at_id", ["created_at", "id"], unique=False)
        batch_op.create_index(
            "ix_sessions_doomed_at",
            ["doomed_at"],
            unique=False,
            sqlite_where=sa.text("doomed_at IS NOT NULL"),
            postgresql_where=sa.text("doomed_at IS NOT NULL"),
        )
        batch_op.create_index(
            "ix_sessions_expires_at",
            ["expires_at"],
            unique=False,
            sqlite_where=sa.text("expires_at IS NOT NULL"),
            postgresql_where=sa.text("expires_at IS NOT NULL"),
        )
        batch_op.create_index(
            "ix_sessions_job_id_created_at_id", ["job_id", "created_at", "id"], unique=False
        )
        batch_op.create_index("ix_sessions_model_created_at_id", ["model", "created_at", "id"], unique=False)
        batch_op.create_index("ix_sessions_owner_created_at_id", ["owner", "created_at", "id"], unique=False)

    op.create_table(
        "session_tags",
        sa.Column("session_id", sa.String(length=64), nullable=False),
        sa.Column("tag", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["sessions.id"],
            name=op.f("fk_session_tags_session_id_sessions"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("session_id", "tag", name=op.f("pk_session_tags")),
    )
    with op.batch_alter_table("session_tags", schema=None) as batch_op:
        batch_op.create_index(
            "ix_session_tags_tag_created_at_session_id", ["tag", "created_at", "session_id"], unique=False
        )
