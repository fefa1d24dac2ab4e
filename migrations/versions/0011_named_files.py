"""What belongs to a version or a model is a row with a name, and a version says its method."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

UNKNOWN = "unknown"  # whose a state is, where no report says so
COLUMNS = (("models", "base"), ("versions", "state"))

model_files = sa.table("model_files", *map(sa.column, ("model_id", "name", "sha256", "size")))
version_files = sa.table(
    "version_files", *map(sa.column, ("model_id", "number", "name", "sha256", "size"))
)
models = sa.table("models", *map(sa.column, ("id", "base_sha256", "base_size")))
versions = sa.table(
    "versions",
    *map(
        sa.column,
        ("model_id", "number", "job_id", "method", "pruned_at", "state_sha256", "state_size"),
    ),
)
jobs = sa.table("jobs", *map(sa.column, ("id", "report")))


def upgrade() -> None:
    op.create_table(
        "model_files",
        sa.Column("model_id", sa.String(length=40), nullable=False),
        *_describe_file(),
        sa.ForeignKeyConstraint(
            ["model_id"],
            ["models.id"],
            name=op.f("fk_model_files_model_id_models"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("model_id", "name", name=op.f("pk_model_files")),
    )
    op.create_table(
        "version_files",
        sa.Column("model_id", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        *_describe_file(),
        sa.ForeignKeyConstraint(
            ["model_id", "number"],
            ["versions.model_id", "versions.number"],
            name=op.f("fk_version_files_model_id_versions"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("model_id", "number", "name", name=op.f("pk_version_files")),
    )
    op.add_column("versions", sa.Column("method", sa.String(length=200), nullable=True))
    _move_bases_and_states()
    for table in ("model_files", "version_files"):
        op.create_index(f"ix_{table}_blob", table, ["sha256", "size"])
    op.drop_index("ix_models_base", "models")
    op.drop_index("ix_versions_state", "versions")
    op.drop_index("ix_versions_kept", "versions")
    for table, name in COLUMNS:
        with op.batch_alter_table(table) as batch_op:
            batch_op.drop_column(f"{name}_size")
            batch_op.drop_column(f"{name}_sha256")
    op.create_index("ix_versions_kept", "versions", ["pruned_at", "sha256", "size"])


def downgrade() -> None:
    for table, name in COLUMNS:
        op.add_column(table, sa.Column(f"{name}_sha256", sa.String(length=64), nullable=True))
        op.add_column(table, sa.Column(f"{name}_size", sa.BigInteger(), nullable=True))
    _move_back()
    op.drop_index("ix_versions_kept", "versions")
    with op.batch_alter_table("versions") as batch_op:
        batch_op.drop_column("method")
    op.create_index("ix_versions_kept", "versions", ["pruned_at", "rollback_of", "size"])
    op.create_index(
        "ix_versions_state",
        "versions",
        ["state_sha256", "pruned_at", "rollback_of", "state_size"],
    )
    op.create_index("ix_models_base", "models", ["base_sha256", "base_size"])
    op.drop_table("version_files")
    op.drop_table("model_files")


def _describe_file() -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
    )


def _move_bases_and_states() -> None:
    connection = op.get_bind()
    base = sa.select(models.c.id, sa.literal("base"), models.c.base_sha256, models.c.base_size)
    connection.execute(
        model_files.insert().from_select(
            ["model_id", "name", "sha256", "size"], base.where(models.c.base_sha256.is_not(None))
        )
    )
    found = connection.execute(sa.select(versions)).all()
    for version in found:
        report = sa.select(jobs.c.report).where(jobs.c.id == version.job_id)  # large: one by one
        method = _method_of(connection.scalar(report))
        this = sa.and_(versions.c.model_id == version.model_id, versions.c.number == version.number)
        connection.execute(versions.update().where(this).values(method=method))
        if version.state_sha256 is not None and version.pruned_at is None:
            row = {
                "model_id": version.model_id,
                "number": version.number,
                "name": f"state/{method or UNKNOWN}",
                "sha256": version.state_sha256,
                "size": version.state_size,
            }
            connection.execute(version_files.insert().values(row))


def _method_of(report: str | None) -> str | None:
    try:
        found: Any = json.loads(report or "")["config"]["method"]
    except (ValueError, LookupError, TypeError):
        return None
    return str(found)


def _move_back() -> None:
    """A base, and of states that of the version's method; there was room for no other file."""
    connection = op.get_bind()
    for file in connection.execute(sa.select(model_files).where(model_files.c.name == "base")):
        of_model = models.update().where(models.c.id == file.model_id)
        connection.execute(of_model.values(base_sha256=file.sha256, base_size=file.size))
    of_version = sa.and_(
        versions.c.model_id == version_files.c.model_id,
        versions.c.number == version_files.c.number,
        version_files.c.name == "state/" + sa.func.coalesce(versions.c.method, UNKNOWN),
    )
    for file in connection.execute(sa.select(version_files).join(versions, of_version)).all():
        this = sa.and_(versions.c.model_id == file.model_id, versions.c.number == file.number)
        values = {"state_sha256": file.sha256, "state_size": file.size}
        connection.execute(versions.update().where(this).values(values))
