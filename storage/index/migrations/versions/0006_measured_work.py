"""Recent work of a job, used to estimate its end"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

COLUMNS = ("recent_samples", "recent_seconds")


def upgrade() -> None:
    for column in COLUMNS:
        op.add_column("jobs", sa.Column(column, sa.Double(), server_default=sa.text("0"), nullable=False))


def downgrade() -> None:
    for column in COLUMNS:
        op.drop_column("jobs", column)
