"""Which methods and kinds each worker has."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

COLUMNS = ("methods", "kinds")


def upgrade() -> None:
    for name in COLUMNS:
        op.add_column("workers", sa.Column(name, sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("workers") as batch_op:
        for name in COLUMNS:
            batch_op.drop_column(name)
