"""Indexes for what is asked often"""

from storage.index.migrations import indexes

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

OPEN_BATCH = "status IN ('validating', 'in_progress', 'finalizing', 'cancelling')"


def upgrade() -> None:
    indexes.create("ix_samples_worker_id_leased", "samples", ["worker_id"], where="status = 'leased'")
    indexes.create("ix_files_created_at_id", "files", ["created_at", "id"])
    indexes.create("ix_files_owner_created_at_id", "files", ["owner", "created_at", "id"])
    indexes.create("ix_batches_open", "batches", ["created_at", "id"], where=OPEN_BATCH)
    indexes.create("ix_batches_owner_created_at_id", "batches", ["owner", "created_at", "id"])
    indexes.create("ix_vectors_owner_created_at_id", "vectors", ["owner", "created_at", "id"])
    indexes.create("ix_jobs_status_created_at_id", "jobs", ["status", "created_at", "id"])
    indexes.create("ix_jobs_kind_created_at_id", "jobs", ["kind", "created_at", "id"])
    indexes.create("ix_webhook_deliveries_job_id", "webhook_deliveries", ["job_id"])


def downgrade() -> None:
    indexes.drop("ix_webhook_deliveries_job_id", "webhook_deliveries")
    indexes.drop("ix_jobs_kind_created_at_id", "jobs")
    indexes.drop("ix_jobs_status_created_at_id", "jobs")
    indexes.drop("ix_vectors_owner_created_at_id", "vectors")
    indexes.drop("ix_batches_owner_created_at_id", "batches")
    indexes.drop("ix_batches_open", "batches")
    indexes.drop("ix_files_owner_created_at_id", "files")
    indexes.drop("ix_files_created_at_id", "files")
    indexes.drop("ix_samples_worker_id_leased", "samples")
