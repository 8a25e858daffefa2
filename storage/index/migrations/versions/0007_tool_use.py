"""Samples that call tools"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

COLUMNS = ("tool_use", "messages")


def upgrade() -> None:
    for column in COLUMNS:
        op.add_column("samples", sa.Column(column, sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    for column in reversed(COLUMNS):
        op.drop_column("samples", column)
