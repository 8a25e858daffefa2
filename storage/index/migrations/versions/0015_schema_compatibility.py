"""The oldest code that works on the schema"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "schema_compatibility",
        sa.Column("oldest_code", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("oldest_code", name=op.f("pk_schema_compatibility")),
    )


def downgrade() -> None:
    op.drop_table("schema_compatibility")
