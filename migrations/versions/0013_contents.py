"""What the weights of a source are, whatever file they came in.

Those of before are digested where their bytes are kept, when their model is next offered something.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sources", sa.Column("content", sa.String(64), nullable=True))
    op.create_index("ix_sources_content", "sources", ["model_id", "content"])


def downgrade() -> None:
    op.drop_index("ix_sources_content", "sources")
    with op.batch_alter_table("sources") as batch_op:
        batch_op.drop_column("content")
