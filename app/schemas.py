"""What goes over the wire. Clients rely on it: fields may be added, never renamed."""

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from app.fields import (
    MAX_INT,
    REFERENCE_PATTERN,
    Classes,
    KindName,
    KindOptions,
    Merge,
    MergeRead,
    Name,
    Sha256,
    Text,
    UploadId,
    Uri,
)
from grasp_core.config import MAX_OPTIONS, FoldConfig, Frozen
from grasp_core.kinds import DEFAULT, Kind, check_augmentation, read_options
from grasp_core.parameters import parse_config
from grasp_core.report import FoldVerdict, LearningRate
from grasp_core.sensitivity import Sensitivity
from registry.jobs.states import JobKind, JobStatus, ModelStatus, TargetStatus
from registry.tables import DeviceClass, ProblemKind

Item = TypeVar("Item")
Overrides = Annotated[dict[str, Any], Field(max_length=MAX_OPTIONS), KindOptions("overrides")]
ClassesRead = Annotated[
    list[str] | None, Field(description="In lists null where they are long; see `class_count`.")
]
ClassCount = Annotated[int | None, Field(description="How many class names there are.")]


class In(BaseModel):
    """A request body: a misspelt field is an error, not a silent default."""

    model_config = ConfigDict(extra="forbid")


class Out(BaseModel):
    model_config = ConfigDict(json_schema_serialization_defaults_required=True)


class Page(Out, Generic[Item]):
    items: list[Item]
    next_cursor: str | None = Field(
        description="Ask for the next page with it; null: no more. A page that would pass about a"
        " megabyte has fewer items than were asked for."
    )


class JobError(Out):
    code: str = Field(examples=["checkpoint_mismatch"])
    message: str
    hint: str | None = None


class Attempt(JobError):
    """Why one attempt went wrong."""

    attempt: int
    at: datetime


class JobRead(Out):
    id: str = Field(examples=["job_01m7hey7wbsmw53n1p6d1mdv6w"])
    kind: JobKind
    status: JobStatus
    stage: str | None = Field(examples=["refine"])
    progress: float = Field(ge=0, le=1)
    metrics: dict[str, Any] = Field(
        description="While it runs: the `candidate` whose turn it is, loss, accuracy, and `curves`"
        " of losses over steps; at the end all figures, with `candidates` and `worth`."
    )
    attempts: int
    failures: list[Attempt] = Field(description="Why earlier attempts went wrong.")
    model: str | None
    target: str | None
    source: str | None
    version: int | None = Field(description="The version it made.")
    verdict: FoldVerdict | None = Field(
        description="What the gate says of a fold; of a dry run, what would have become of it."
    )
    error: JobError | None = Field(description="Why it ended so; of a queued job, why it waits.")
    revision: int = Field(description="Grows with every change.")
    owner: str = Field(examples=["local"])
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    links: dict[str, str]


class TargetCreate(In):
    """What is said of a target, wherever its data comes from."""

    name: Name
    kind: KindName = DEFAULT
    sha256: Sha256 | None = Field(None, description="Verified, if given.")


class TargetFromUri(TargetCreate):
    """Data that is fetched; or used where it lies, below one of GRASP_DATA_ROOTS."""

    uri: Uri = Field(examples=["file:///data/faces"])


class TargetFromUpload(TargetCreate):
    upload: UploadId


class TargetFields(TargetCreate):
    """What comes beside the bytes, in whichever way they come."""

    uri: Uri | None = None
    upload: UploadId | None = None


class TargetRead(Out):
    id: str
    name: str
    kind: str = Field(description="The kind of problem: what its examples are.")
    status: TargetStatus
    uri: str | None
    sha256: str | None = Field(description="Of an uploaded archive.")
    size: int | None
    classes: ClassesRead
    class_count: ClassCount
    counts: dict[str, dict[str, int]] | None = Field(
        description="Examples per split and class; in lists null where that is long."
    )
    images: int | None = Field(description="Examples that can be used, of whichever kind.")
    broken: list[dict[str, str]] | None = Field(
        description="Examples that do not decode, and why; in lists null where that is long."
    )
    broken_count: int | None
    fingerprint: str | None
    sensitivity: Sensitivity | None = Field(
        description="What a gate with its defaults can see; in lists null where counts are."
    )
    warnings: list[str] = Field(description="What to think of before relying on it.")
    error: JobError | None
    job: str
    created_at: datetime
    links: dict[str, str]


class TargetSample(Out):
    """One example; what its kind cannot show is left out."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)

    class_name: str = Field(alias="class")
    split: Literal["train", "val", "test"]
    png: str | None = Field(None, description="Of kinds that can be seen: small, in base64.")
    text: str | None = Field(None, description="Of kinds that can be read.")


class TargetSamples(Out):
    items: list[TargetSample]


class TargetCreated(Out):
    target: TargetRead
    job: JobRead


class BaseFromUri(In):
    uri: Uri = Field(examples=["https://models.example/pretrained.safetensors"])
    sha256: Sha256 | None = Field(None, description="Verified, if given.")


class BaseFromUpload(In):
    upload: UploadId
    sha256: Sha256 | None = Field(None, description="Verified, if given.")


def _kind_of_base(value: Any) -> str | None:
    if value == "initial":
        return "initial"
    given = value.model_fields_set if isinstance(value, In) else value
    found = {"uri", "upload"}.intersection(given) if isinstance(given, dict | set) else ()
    return found.pop() if len(found) == 1 else None


ModelBase = Annotated[
    Annotated[BaseFromUri, Tag("uri")]
    | Annotated[BaseFromUpload, Tag("upload")]
    | Annotated[Literal["initial"], Tag("initial")],
    Discriminator(
        _kind_of_base,
        custom_error_type="base",
        custom_error_message='must be {"uri": …}, {"upload": …} or "initial"',
    ),
]


class ModelCreate(In):
    name: Name
    architecture: str = Field(
        pattern=REFERENCE_PATTERN, description="One that the target's kind knows by this name."
    )
    target: str = Field(pattern=REFERENCE_PATTERN, description="Id or name of a target.")
    classes: Classes | None = Field(
        None, description="Names of the outputs, in order; without them the target's."
    )
    image_size: int | None = Field(None, ge=8, le=4096)
    preprocessing: Overrides = Field(
        {}, description="What to replace of the architecture's own, as the target's kind takes it."
    )
    seed: int | None = Field(None, ge=0, le=2**63 - 1)
    merge: Merge = Field(default_factory=lambda: parse_config({}))
    keep_versions: int | None = Field(
        None, ge=1, le=MAX_INT, description="Keep the weights of so many; null: of all."
    )
    keep_sources: bool = Field(
        False, description="Keep the bytes of folded sources, which are never read again."
    )

    queue: DeviceClass | None = Field(
        None, description="What kind of worker folds: gpu or cpu; null: any."
    )
    base: ModelBase | None = Field(
        None,
        description="What the sources were fine-tuned from, which some methods need: safetensors at"
        ' a uri, a finished upload, or "initial": the weights that come in the part `file`.',
    )

    @model_validator(mode="after")
    def _consistent(self) -> "ModelCreate":
        inner = self.preprocessing.get("image_size")
        if None not in (self.image_size, inner) and self.image_size != inner:
            raise ValueError("image_size and preprocessing.image_size differ")
        return self

    def overrides(self, kind: Kind) -> Frozen:
        """Raises ValidationError for what a model of this kind does not have."""
        given = dict(self.preprocessing)
        if self.image_size is not None:
            given["image_size"] = self.image_size
        return read_options(kind, "overrides", given)

    def parameters(self, kind: Kind) -> FoldConfig:
        """Raises ValidationError for augmentation that this kind does not have."""
        seed = {} if self.seed is None else {"seed": self.seed}
        return check_augmentation(self.merge.model_copy(update=seed), kind)


class ModelUpdate(In):
    """What to change for later folds; the rest stays. `merge` may hold a part of its fields."""

    name: Name | None = None
    merge: dict[str, Any] | None = None
    keep_versions: int | None = Field(None, ge=1, le=MAX_INT)
    keep_sources: bool | None = None
    queue: DeviceClass | None = None


class BlobRead(Out):
    sha256: str
    size: int


class FileRead(BlobRead):
    name: str = Field(examples=["state/mean"])
    links: dict[str, str]


class ModelLearningRate(LearningRate):
    """What `refine.lr: "auto"` means for this model."""

    version: int = Field(description="Whose fold tried them.")


class ModelRead(Out):
    id: str
    name: str
    status: ModelStatus
    version: int | None = Field(description="The newest; null until a source is folded.")
    kind: str = Field(description="Its target's.")
    architecture: str
    classes: ClassesRead
    class_count: ClassCount
    image_size: int | None
    preprocessing: Overrides
    seed: int
    merge: MergeRead
    learning_rate: ModelLearningRate | None = Field(
        None, description="What a fold found, for refine.lr auto; null: none did yet."
    )
    target: str
    keep_versions: int | None
    keep_sources: bool
    queue: DeviceClass | None
    base: BlobRead | None = Field(None, description="What the sources were fine-tuned from.")
    files: list[FileRead] = Field([], description="What belongs to it, the base among it.")
    error: JobError | None
    held: JobError | None = Field(
        None,
        description="What its jobs wait for: its newest version, its base or its target.",
    )
    job: str = Field(description="The job that prepares it.")
    accuracy: dict[str, float] | None = Field(
        None, description="In lists: of the newest version, on `val` and `test`."
    )
    created_at: datetime
    links: dict[str, str]


class ModelInfo(ModelRead):
    sha256: str | None = Field(description="Of the newest version's weights.")
    size: int | None
    metrics: dict[str, Any] | None = Field(description="Of the newest version.")
    best: int | None = Field(
        description="The version with the best validation log-likelihood, which need not be the"
        " newest; null: none says."
    )
    sensitivity: Sensitivity | None = Field(description="What its gate can see of its target.")
    sources: dict[JobStatus, int] = Field(
        description="How many sources were accepted (succeeded), rejected, and so on."
    )


class ModelCreated(Out):
    model: ModelRead
    job: JobRead
    source: "SourceRead | None" = Field(None, description="The initial weights, if given.")


class SourceCreate(In):
    """What is said of a source, wherever its bytes come from."""

    model: str = Field(pattern=REFERENCE_PATTERN, description="Id or name of a model.")
    name: Text | None = None
    classes: Classes | None = None
    sha256: Sha256 | None = Field(None, description="Verified, if given.")


class SourceFromUri(SourceCreate):
    uri: Uri = Field(examples=["file:///data/site-a.safetensors"])


class SourceFromUpload(SourceCreate):
    upload: UploadId


class SourceRead(Out):
    id: str
    name: str
    model: str
    sha256: str
    size: int
    content: str | None = Field(
        None,
        description="The hash of its weights, whatever the file around them says; null for sources"
        " of older releases whose bytes were gone.",
    )
    classes: ClassesRead
    class_count: ClassCount
    status: JobStatus = Field(description="Of its job.")
    version: int | None = Field(description="The version it became part of.")
    stored: bool = Field(description="Whether its bytes are still here.")
    job: str
    created_at: datetime
    links: dict[str, str]


class SourceCreated(Out):
    source: SourceRead | None = Field(description="Null for a dry run.")
    job: JobRead


class VersionRead(Out):
    number: int
    sha256: str
    size: int
    method: str | None = Field(None, description="That merged it; null: nobody knows any more.")
    state: BlobRead | None = Field(None, description="What its method remembers, if it does.")
    files: list[FileRead] = Field([], description="What belongs to it beside the weights.")
    parent: int | None
    source: str | None
    rollback_of: int | None = Field(description="The version that this one equals.")
    kept: bool = Field(
        False, description="No candidate was better: the weights are those of the version before."
    )
    summary: str | None = Field(
        None, description="In words, what its source was worth, and which candidate won."
    )
    metrics: dict[str, Any]
    available: bool = Field(description="False: retention deleted the weights.")
    problem: ProblemKind | None = Field(
        None, description="What is known to be wrong with the stored weights or another file."
    )
    job: str
    created_at: datetime
    links: dict[str, str]


class Rollback(In):
    version: int = Field(ge=1, le=MAX_INT, description="The version to go back to.")


class Contribution(Out):
    sha256: str
    source: str | None
    name: str | None
    share: float = Field(description="Of all parameters.")


class ParameterOrigin(Out):
    name: str
    size: int
    shares: dict[str, float] = Field(description="Source sha256 → share of this parameter.")


class ProvenanceRead(Out):
    version: int
    sources: list[Contribution]
    parameters: list[ParameterOrigin]


class UploadRead(Out):
    id: str
    size: int = Field(description="Of the whole file.")
    received: int = Field(description="How many of its bytes have arrived.")
    metadata: dict[str, str] = Field(description="What the client said of it: `filename`, `model`.")
    created_at: datetime
    expires_at: datetime = Field(description="It is deleted then, unless more bytes come.")
    links: dict[str, str]


class WorkerRead(Out):
    id: str
    host: str
    pid: int
    device: str
    memory_bytes: int | None
    release: str
    alive: bool
    busy: bool
    job: str | None = Field(description="Null too where the job is another owner's.")
    started_at: datetime
    seen_at: datetime


class Health(Out):
    status: Literal["ok"] = "ok"
    version: str


class Readiness(Out):
    status: Literal["ready", "not ready"]
    checks: dict[str, str] = Field(examples=[{"database": "ok", "blobs": "ok", "workers": "1"}])
