"""The tables. Every row that a user can name has an owner; docs/architecture.md draws them."""

from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    DateTime,
    Dialect,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    mapped_column,
    query_expression,
    relationship,
)

from grasp_core.named_files import WEIGHTS
from registry.jobs.states import ACTIVE, MOVES, JobKind, JobStatus, ModelStatus, TargetStatus

Scope = Literal["read", "write", "admin"]
DeviceClass = Literal["gpu", "cpu"]
ProblemKind = Literal["damaged", "missing", "unreadable"]
Json = dict[str, Any]
DEFAULT = "image"  # as grasp_core.kinds has it: a test compares them


class UtcDateTime(TypeDecorator[datetime]):
    """Aware on both sides: SQLite forgets time zones, so all are stored and read as UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def utc_now() -> datetime:
    return datetime.now(UTC)


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {
        datetime: UtcDateTime,
        Json: JSON(none_as_null=True),
        list[Any]: JSON(none_as_null=True),
        JobStatus: String(16),
        JobKind: String(16),
        TargetStatus: String(16),
        ModelStatus: String(16),
        Scope: String(16),
        DeviceClass: String(16),
        ProblemKind: String(16),
    }


ID = String(40)
NAME = String(200)
KIND = String(50)
SHA256 = String(64)
ONLY_ACTIVE: Json = {
    f"{dialect}_where": text(f"status IN {ACTIVE}") for dialect in ("sqlite", "postgresql")
}


class Queue(Base):
    """The jobs of one model, or of one target, in arrival order; leased by one worker at a time.

    `epoch` grows with every lease: whoever holds an older one holds nothing. A queue does not
    begin while another that it waits for has work: a model's, for its target's.
    """

    __tablename__ = "queues"

    id: Mapped[str] = mapped_column(ID, primary_key=True)  # the model's or the target's
    waits_for: Mapped[str | None] = mapped_column(ID)
    next_seq: Mapped[int] = mapped_column(default=0)
    holder: Mapped[str | None] = mapped_column(ID)
    expires_at: Mapped[datetime | None]
    epoch: Mapped[int] = mapped_column(default=0)


class Target(Base):
    """Labelled data of the domain we care about: a folder below a data root, or an upload."""

    __tablename__ = "targets"
    __table_args__ = (UniqueConstraint("owner", "name"),)

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    owner: Mapped[str] = mapped_column(NAME)
    name: Mapped[str] = mapped_column(NAME)
    kind: Mapped[str] = mapped_column(KIND, default=DEFAULT, server_default=DEFAULT)
    uri: Mapped[str | None] = mapped_column(Text)
    sha256: Mapped[str | None] = mapped_column(SHA256, index=True)  # of an uploaded archive
    size: Mapped[int | None] = mapped_column(BigInteger)
    status: Mapped[TargetStatus]
    summary: Mapped[Json | None]  # classes, counts, fingerprint, broken examples
    class_count: Mapped[int | None] = query_expression()  # in lists: registry/briefs.py
    samples: Mapped[list[Any] | None] = mapped_column(deferred=True)  # a few of each class
    error: Mapped[Json | None]
    job_id: Mapped[str] = mapped_column(ID)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Model(Base):
    """A lineage of versions: one architecture, one target, one set of merge parameters."""

    __tablename__ = "models"
    __table_args__ = (UniqueConstraint("owner", "name"),)

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    owner: Mapped[str] = mapped_column(NAME)
    name: Mapped[str] = mapped_column(NAME)
    kind: Mapped[str] = mapped_column(KIND, default=DEFAULT, server_default=DEFAULT)  # its target's
    architecture: Mapped[str] = mapped_column(NAME)
    classes: Mapped[list[Any] | None]  # None: the target's, once it is validated
    class_count: Mapped[int | None] = query_expression()  # in lists: registry/briefs.py
    preprocessing: Mapped[Json]  # what the user replaces of the architecture's own
    merge: Mapped[Json]  # grasp_core.config.FoldConfig
    learning_rate: Mapped[Json | None]  # grasp_core.report.LearningRate, and of which version
    target_id: Mapped[str] = mapped_column(ForeignKey("targets.id"), index=True)
    status: Mapped[ModelStatus]
    version: Mapped[int | None]  # the newest; None until something is merged
    manifest: Mapped[Json | None] = mapped_column(deferred=True)
    device_class: Mapped[DeviceClass | None] = mapped_column("queue")  # of who folds; None: any
    keep_versions: Mapped[int | None]  # None: all
    keep_sources: Mapped[bool] = mapped_column(default=False)
    error: Mapped[Json | None]
    job_id: Mapped[str] = mapped_column(ID)  # the one that prepares it
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    methods: Mapped[list["ModelMethod"]] = relationship(
        cascade="all, delete-orphan", passive_deletes=True
    )
    files: Mapped[list["ModelFile"]] = relationship(
        cascade="all, delete-orphan",
        passive_deletes=True,
        lazy="selectin",
        order_by="ModelFile.name",
    )


class ModelMethod(Base):
    """A method among the candidates of a model's folds, by which a worker that has it is found."""

    __tablename__ = "model_methods"

    model_id: Mapped[str] = mapped_column(
        ForeignKey("models.id", ondelete="CASCADE"), primary_key=True
    )
    method: Mapped[str] = mapped_column(NAME, primary_key=True)


class ModelFile(Base):
    """What belongs to a model, by name: the base that its sources were fine-tuned from."""

    __tablename__ = "model_files"
    __table_args__ = (Index("ix_model_files_blob", "sha256", "size"),)  # as version_files have it

    model_id: Mapped[str] = mapped_column(
        ForeignKey("models.id", ondelete="CASCADE"), primary_key=True
    )
    name: Mapped[str] = mapped_column(NAME, primary_key=True)
    sha256: Mapped[str] = mapped_column(SHA256)
    size: Mapped[int] = mapped_column(BigInteger)


class Source(Base):
    """One checkpoint offered to one model. What became of it is the status of its job."""

    __tablename__ = "sources"
    __table_args__ = (
        UniqueConstraint("model_id", "sha256"),
        Index("ix_sources_content", "model_id", "content"),  # older releases took some twice
        Index("ix_sources_stored", "stored", "size"),  # what /metrics sums up
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    owner: Mapped[str] = mapped_column(NAME, index=True)
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(NAME)
    sha256: Mapped[str] = mapped_column(SHA256, index=True)
    size: Mapped[int] = mapped_column(BigInteger)
    content: Mapped[str | None] = mapped_column(SHA256)  # of its tensors: grasp_core/content.py
    classes: Mapped[list[Any] | None]
    class_count: Mapped[int | None] = query_expression()  # in lists: registry/briefs.py
    stored: Mapped[bool] = mapped_column(default=True)  # False: folded, its bytes are not needed
    job_id: Mapped[str] = mapped_column(ID)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Version(Base):
    """An immutable result: of a fold, or of going back to an older one."""

    __tablename__ = "versions"
    __table_args__ = (
        Index("ix_versions_kept", "pruned_at", "sha256", "size"),  # what /metrics sums up
    )

    model_id: Mapped[str] = mapped_column(
        ForeignKey("models.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[str] = mapped_column(NAME)
    sha256: Mapped[str] = mapped_column(SHA256, index=True)
    size: Mapped[int] = mapped_column(BigInteger)
    method: Mapped[str | None] = mapped_column(NAME)  # that merged it; None: nobody knows any more
    parent: Mapped[int | None]
    source_id: Mapped[str | None] = mapped_column(ID)
    rollback_of: Mapped[int | None]  # the version that this one equals
    job_id: Mapped[str] = mapped_column(ID)  # whose report says how the weights came about
    metrics: Mapped[Json]
    pruned_at: Mapped[datetime | None]  # its weights were deleted by the model's retention
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    files: Mapped[list["VersionFile"]] = relationship(
        cascade="all, delete-orphan",
        passive_deletes=True,
        lazy="selectin",
        order_by="VersionFile.name",
    )

    @property
    def content(self) -> frozenset[tuple[str, str]]:
        """Name and sha256 of all that it consists of."""
        return frozenset(
            {(WEIGHTS, self.sha256), *((file.name, file.sha256) for file in self.files)}
        )


class VersionFile(Base):
    """What belongs to a version beside its weights, by name; it goes with the weights."""

    __tablename__ = "version_files"
    __table_args__ = (
        ForeignKeyConstraint(
            ["model_id", "number"], ["versions.model_id", "versions.number"], ondelete="CASCADE"
        ),
        Index("ix_version_files_blob", "sha256", "size"),  # who needs it; what /metrics sums up
    )

    model_id: Mapped[str] = mapped_column(ID, primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(NAME, primary_key=True)
    sha256: Mapped[str] = mapped_column(SHA256)
    size: Mapped[int] = mapped_column(BigInteger)


class Job(Base):
    """A unit of queued work. `revision` grows with every change; clients follow it by that."""

    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint(f"status IN {tuple(MOVES)}", name="status"),
        UniqueConstraint("queue_id", "seq"),
        # What a claim walks: as long as what waits, however many jobs have ended.
        Index("ix_jobs_active", "created_at", "id", **ONLY_ACTIVE),
        Index("ix_jobs_active_queue_id", "queue_id", "seq", **ONLY_ACTIVE),
        Index("ix_jobs_kind_status", "kind", "status"),  # what /metrics counts
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    owner: Mapped[str] = mapped_column(NAME, index=True)
    queue_id: Mapped[str] = mapped_column(ForeignKey("queues.id", ondelete="CASCADE"))
    seq: Mapped[int]
    kind: Mapped[JobKind]
    status: Mapped[JobStatus] = mapped_column(default="queued")
    revision: Mapped[int] = mapped_column(default=1)
    stage: Mapped[str | None] = mapped_column(String(40))
    progress: Mapped[float] = mapped_column(default=0.0)
    metrics: Mapped[Json] = mapped_column(default=dict)
    attempts: Mapped[int] = mapped_column(default=0)
    failures: Mapped[list[Any]] = mapped_column(default=list)  # why each attempt went wrong
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    model_id: Mapped[str | None] = mapped_column(ID, index=True)
    target_id: Mapped[str | None] = mapped_column(ID, index=True)
    source_id: Mapped[str | None] = mapped_column(ID, index=True)
    candidate: Mapped[Json | None]  # of a dry run: name, size and classes of the checkpoint
    candidate_sha256: Mapped[str | None] = mapped_column(SHA256, index=True)
    version: Mapped[int | None]
    verdict: Mapped[Json | None]  # grasp_core.report.FoldVerdict, of folds
    error: Mapped[Json | None]
    report: Mapped[str | None] = mapped_column(Text, deferred=True)
    worker_id: Mapped[str | None] = mapped_column(ID)
    request_id: Mapped[str | None] = mapped_column(String(64))
    traceparent: Mapped[str | None] = mapped_column(String(55))  # of the request (W3C)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class Upload(Base):
    """A file that arrives in parts (tus), until a request makes a source or a target of it."""

    __tablename__ = "uploads"

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    owner: Mapped[str] = mapped_column(NAME, index=True)
    size: Mapped[int] = mapped_column(BigInteger)
    received: Mapped[int] = mapped_column(BigInteger, default=0)
    details: Mapped[Json]  # what the client said of it: file name and so on
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime] = mapped_column(index=True)


class UploadPart(Base):
    """What a request brought, or a piece of it: a blob, which lies at `offset` in the whole."""

    __tablename__ = "upload_parts"

    upload_id: Mapped[str] = mapped_column(
        ForeignKey("uploads.id", ondelete="CASCADE"), primary_key=True
    )
    offset: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(SHA256, index=True)


class BlobProblem(Base):
    """A blob that was found to be bad, until it is sound again or nothing needs it."""

    __tablename__ = "blob_problems"

    sha256: Mapped[str] = mapped_column(SHA256, primary_key=True)
    problem: Mapped[ProblemKind]
    noticed_at: Mapped[datetime]
    look_at: Mapped[datetime]  # not before then do jobs that all need it try to read it


class Worker(Base):
    """A worker process: what it runs on, and when it was last heard of."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    host: Mapped[str] = mapped_column(NAME)
    pid: Mapped[int]
    device: Mapped[str] = mapped_column(NAME)
    memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    release: Mapped[str] = mapped_column(String(40))
    methods: Mapped[list[Any] | None]  # that it has, by name; None: of an older release
    kinds: Mapped[list[Any] | None]
    job_id: Mapped[str | None] = mapped_column(ID)
    totals: Mapped[Json | None]  # what it has done since it started, for /metrics
    started_at: Mapped[datetime] = mapped_column(default=utc_now)
    seen_at: Mapped[datetime] = mapped_column(default=utc_now)


class ApiKey(Base):
    """A key's hash, never the key."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    owner: Mapped[str] = mapped_column(NAME)
    scope: Mapped[Scope]
    sha256: Mapped[str] = mapped_column(SHA256, unique=True)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]


class Answer(Base):
    """What was answered to a request with an Idempotency-Key, to answer the same again."""

    __tablename__ = "answers"

    owner: Mapped[str] = mapped_column(NAME, primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    request: Mapped[str] = mapped_column(SHA256)  # hash of method, path and content
    status: Mapped[int]
    location: Mapped[str | None] = mapped_column(Text)
    body: Mapped[Json]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
