"""What kind of problem a target and its models are."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

TABLES = ("targets", "models")


def upgrade() -> None:
    for table in TABLES:
        kind = sa.Column("kind", sa.String(length=50), nullable=False, server_default="image")
        op.add_column(table, kind)


def downgrade() -> None:
    for table in TABLES:
        with op.batch_alter_table(table) as batch_op:
            batch_op.drop_column("kind")
