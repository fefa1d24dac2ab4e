"""Indexes of active jobs, by age and by queue: what a claim looks at."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ACTIVE = sa.text("status IN ('queued', 'running')")


def upgrade() -> None:
    for name, columns in (
        ("ix_jobs_active", ["created_at", "id"]),
        ("ix_jobs_active_queue_id", ["queue_id", "seq"]),
    ):
        op.create_index(name, "jobs", columns, sqlite_where=ACTIVE, postgresql_where=ACTIVE)
    op.drop_index("ix_jobs_status_queue_id", "jobs")


def downgrade() -> None:
    op.create_index("ix_jobs_status_queue_id", "jobs", ["status", "queue_id"])
    op.drop_index("ix_jobs_active_queue_id", "jobs")
    op.drop_index("ix_jobs_active", "jobs")
