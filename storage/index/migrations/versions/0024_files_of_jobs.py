"""Files that an analysis job made"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("files", sa.Column("job_id", sa.String(length=64), nullable=True))
    op.create_index("ix_files_job_id", "files", ["job_id"])


def downgrade() -> None:
    op.drop_index("ix_files_job_id", table_name="files")
    op.drop_column("files", "job_id")
