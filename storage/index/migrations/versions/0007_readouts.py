"""A sample has the values of its readouts in short."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("samples", sa.Column("readouts", sa.JSON(none_as_null=True), nullable=True))
