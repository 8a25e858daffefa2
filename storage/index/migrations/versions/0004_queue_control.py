"""Queue control: pauses by hand, deadlines, turns, and failures in a row"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "queue_pauses",
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=500), nullable=True),
        sa.Column("paused_by", sa.String(length=64), nullable=False),
        sa.Column("paused_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("kind", name=op.f("pk_queue_pauses")),
    )
    # columns are added in place: on SQLite a table made anew would take the rows that refer to it along
    op.add_column("jobs", sa.Column("deadline_at", sa.Double(), nullable=True))
    op.add_column("jobs", sa.Column("served_at", sa.Double(), nullable=True))
    op.add_column(
        "jobs", sa.Column("failed_in_a_row", sa.Integer(), server_default=sa.text("0"), nullable=False)
    )


def downgrade() -> None:
    for column in ("failed_in_a_row", "served_at", "deadline_at"):
        op.drop_column("jobs", column)
    op.drop_table("queue_pauses")
