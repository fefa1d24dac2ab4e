"""Resumable uploads; what targets look like; what workers did; where a job's trace began."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# What /metrics counts and sums up: in an index, and not in rows that hold reports.
COUNTED = (
    ("ix_jobs_kind_status", "jobs", ["kind", "status"]),
    ("ix_sources_stored", "sources", ["stored", "size"]),
    ("ix_versions_kept", "versions", ["pruned_at", "rollback_of", "size"]),
)


def upgrade() -> None:
    op.create_table(
        "uploads",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("received", sa.BigInteger(), nullable=False),
        sa.Column("details", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_uploads")),
    )
    op.create_index(op.f("ix_uploads_owner"), "uploads", ["owner"])
    op.create_index(op.f("ix_uploads_expires_at"), "uploads", ["expires_at"])
    op.create_table(
        "upload_parts",
        sa.Column("upload_id", sa.String(length=40), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["upload_id"],
            ["uploads.id"],
            name=op.f("fk_upload_parts_upload_id_uploads"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("upload_id", "offset", name=op.f("pk_upload_parts")),
    )
    op.create_index(op.f("ix_upload_parts_sha256"), "upload_parts", ["sha256"])
    op.add_column("jobs", sa.Column("traceparent", sa.String(length=55), nullable=True))
    op.add_column("targets", sa.Column("samples", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("workers", sa.Column("totals", sa.JSON(none_as_null=True), nullable=True))
    for name, table, columns in COUNTED:
        op.create_index(name, table, columns)


def downgrade() -> None:
    for name, table, _ in COUNTED:
        op.drop_index(name, table)
    for table, column in (("workers", "totals"), ("targets", "samples"), ("jobs", "traceparent")):
        with op.batch_alter_table(table) as batch_op:
            batch_op.drop_column(column)
    op.drop_table("upload_parts")
    op.drop_table("uploads")
