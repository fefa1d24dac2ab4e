"""What a model's first fold found out about its learning rate; and the schedule of those that were
made before there was a choice."""

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

MODELS = sa.table("models", sa.column("id", sa.String), sa.column("merge", sa.JSON))
BEFORE = {"schedule": "epoch", "steps": None}  # as it was for all


def upgrade() -> None:
    op.add_column("models", sa.Column("learning_rate", sa.JSON(none_as_null=True), nullable=True))
    _change_refinement(lambda refine: refine | BEFORE)


def downgrade() -> None:
    _change_refinement(lambda refine: {n: v for n, v in refine.items() if n not in BEFORE})
    with op.batch_alter_table("models") as batch_op:
        batch_op.drop_column("learning_rate")


def _change_refinement(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    connection = op.get_bind()
    for model in connection.execute(sa.select(MODELS)).all():
        if isinstance(model.merge.get("refine"), dict):
            merge = model.merge | {"refine": change(model.merge["refine"])}
            connection.execute(sa.update(MODELS).where(MODELS.c.id == model.id).values(merge=merge))
