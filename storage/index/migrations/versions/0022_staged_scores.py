"""New scores of ended jobs, written beside those in force"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("staged_scoring", sa.String(length=64), nullable=True))
    op.add_column("jobs", sa.Column("scoring", sa.String(length=64), nullable=True))
    with_scoring = sa.text("scoring IS NOT NULL")
    op.create_index(
        "ix_jobs_scoring", "jobs", ["scoring"], sqlite_where=with_scoring, postgresql_where=with_scoring
    )
    op.add_column("samples", sa.Column("scoring", sa.String(length=64), nullable=True))
    op.add_column("samples", sa.Column("staged_scores", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("samples", "staged_scores")
    op.drop_column("samples", "scoring")
    op.drop_index("ix_jobs_scoring", table_name="jobs")
    op.drop_column("jobs", "scoring")
    op.drop_column("jobs", "staged_scoring")
