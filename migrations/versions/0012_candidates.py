"""The methods of a model's candidates, by which a worker that has them is found."""

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

DEFAULT = "grasp"  # of parameters that do not say
models = sa.table("models", sa.column("id"), sa.column("merge", sa.JSON))


def methods_of(merge: dict[str, Any]) -> Iterable[str]:
    """There are several where this was downgraded before."""
    candidates = merge.get("candidates", [merge])
    return dict.fromkeys(candidate.get("method", DEFAULT) for candidate in candidates)


def upgrade() -> None:
    methods = op.create_table(
        "model_methods",
        sa.Column("model_id", sa.String(length=40), nullable=False),
        sa.Column("method", sa.String(length=200), nullable=False),
        sa.ForeignKeyConstraint(
            ["model_id"],
            ["models.id"],
            name=op.f("fk_model_methods_model_id_models"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("model_id", "method", name=op.f("pk_model_methods")),
    )
    rows = op.get_bind().execute(sa.select(models)).all()
    op.bulk_insert(
        methods,
        [{"model_id": row.id, "method": name} for row in rows for name in methods_of(row.merge)],
    )


def downgrade() -> None:
    op.drop_table("model_methods")
