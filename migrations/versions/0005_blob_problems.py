"""Blobs that were found damaged, missing or unreadable."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "blob_problems",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("problem", sa.String(length=16), nullable=False),
        sa.Column("noticed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("look_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_blob_problems")),
    )


def downgrade() -> None:
    op.drop_table("blob_problems")
