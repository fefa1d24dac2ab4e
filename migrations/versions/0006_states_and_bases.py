"""What a method remembers of its folds, and what a model's sources were trained from."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

BLOBS = (("models", "base"), ("versions", "state"))
# Whose a blob is, and what /metrics sums up.
INDEXES = (
    ("ix_models_base", "models", ["base_sha256", "base_size"]),
    ("ix_versions_state", "versions", ["state_sha256", "pruned_at", "rollback_of", "state_size"]),
)


def upgrade() -> None:
    for table, name in BLOBS:
        op.add_column(table, sa.Column(f"{name}_sha256", sa.String(length=64), nullable=True))
        op.add_column(table, sa.Column(f"{name}_size", sa.BigInteger(), nullable=True))
    for name, table, columns in INDEXES:
        op.create_index(name, table, columns)


def downgrade() -> None:
    for name, table, _ in INDEXES:
        op.drop_index(name, table)
    for table, name in BLOBS:
        with op.batch_alter_table(table) as batch_op:
            batch_op.drop_column(f"{name}_size")
            batch_op.drop_column(f"{name}_sha256")
