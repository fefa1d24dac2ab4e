"""The parameters of a fold: validated data, without torch, so that any process can check it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_serializer,
    model_validator,
)

from grasp_core.errors import shorten

# Unicode's control characters, line separators, and format characters, which turn a line around or
# hide in it: no part of a name that is shown. Joiners (U+200C, U+200D) are: languages need them.
CONTROL = (
    r"\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    r"\ufeff\ufff9-\ufffb"
)
NAME_SHOWN = 100  # characters of a name, in a message
# What is stored with every model, and shown again and again, has an end.
MAX_CLASSES, MAX_CLASS_NAME = 10_000, 200  # names, and characters of each
MAX_PATTERNS, MAX_PATTERN = 256, 200
MAX_OPTIONS = 64  # of a kind
MAX_WORD = 100  # characters
# Far beyond what helps, and short of what never ends or fits no memory.
MAX_EPOCHS, MAX_STEPS, MAX_BATCHES, MAX_BATCH = 10_000, 10_000_000, 10_000, 2**16
MAX_RATE, MAX_SEED = 100.0, 2**63 - 1
MAX_CANDIDATES, MAX_SECONDS = 16, 1e9
LEARNING_RATES = (5e-5, 2e-4, 5e-4, 1e-3, 2e-3)  # that are tried for `auto`
_NOT_TEXT = re.compile(rf"[{CONTROL}\ud800-\udfff]")  # half a surrogate pair is no character


def require_text(name: str) -> str:
    """The name of a class. Raises ValueError if it holds characters that no line can show."""
    if found := _NOT_TEXT.search(name):
        raise ValueError(
            f"the class name {shorten(name, NAME_SHOWN)!r} holds the control character {found[0]!r}"
        )
    return name


def require_names(names: Collection[str]) -> None:
    """Of classes that come in. Raises ValueError for too many, and for one that is too long or
    holds characters that no line can show."""
    if len(names) > MAX_CLASSES:
        raise ValueError(f"it has {len(names)} classes, more than {MAX_CLASSES}")
    for name in names:
        if len(require_text(name)) > MAX_CLASS_NAME:
            short = shorten(name, NAME_SHOWN)
            raise ValueError(f"the class name {short!r} is longer than {MAX_CLASS_NAME} characters")


def one_message(message: str) -> WrapValidator:
    """For a union: one thing to say, instead of one for each type that it could have been."""

    def validate(value: object, handler: ValidatorFunctionWrapHandler) -> object:
        try:
            return handler(value)
        except ValidationError as error:
            raise ValueError(message) from error

    return WrapValidator(validate)


ClassName = Annotated[str, AfterValidator(require_text)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Precision = Literal["auto", "float32", "bfloat16", "float16"]


def plain_words(message: str) -> str:
    """What pydantic says of a value that is wrong, as one would say it."""
    if "should match pattern '^[A-Za-z0-9" in message:
        return "only letters, digits, dots, dashes and underscores make a name"
    if message == "Extra inputs are not permitted":
        return "there is no such parameter"
    return message.removeprefix("Value error, ")


class Frozen(BaseModel):
    """Immutable, and strict about names: a misspelt parameter is an error, not a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RefineConfig(Frozen):
    """Fine-tuning on the target with AdamW, for the larger of so many steps and so many epochs."""

    steps: int | None = Field(
        100, ge=0, le=MAX_STEPS, description="At least so many; given alone, just so many."
    )
    epochs: int | None = Field(
        3, ge=0, le=MAX_EPOCHS, description="At least so many; given alone, just so many."
    )
    lr: Annotated[
        Annotated[float, Field(gt=0.0, le=MAX_RATE)] | Literal["auto"],
        one_message(f"must be a number above 0, at most {MAX_RATE:g}, or auto"),
    ] = Field(
        "auto",
        description="Highest learning rate; auto: a model's first fold tries 5e-5, 2e-4, 5e-4, 1e-3"
        " and 2e-3, and the best by validation log-likelihood is kept for those that follow.",
    )
    schedule: Literal["step", "epoch"] = Field(
        "step",
        description="step: a warm-up over the first tenth, a cosine to zero, the best of eleven"
        " looks by validation log-likelihood; epoch: the paper's, a cosine that falls after each"
        " epoch, the best epoch by validation accuracy.",
    )
    weight_decay: float = Field(0.01, ge=0.0, le=MAX_RATE, description="AdamW's.")
    batch_size: int = Field(
        32, ge=1, le=MAX_BATCH, description="Examples per step, and per step of evaluation."
    )
    patience: int | None = Field(
        None,
        ge=1,
        le=MAX_EPOCHS,
        description="Stop after so many looks at validation without a better one; None: never.",
    )
    freeze: tuple[Annotated[str, Field(max_length=MAX_PATTERN)], ...] = Field(
        (),
        max_length=MAX_PATTERNS,
        description="Glob patterns of parameters left as they are, such as stem.*",
    )
    augmentation: dict[str, Any] = Field(
        {},
        max_length=MAX_OPTIONS,
        description="Random changes to training examples; which there are depends on the kind.",
    )

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        return {**cls.implied(values), **values} if isinstance(values, Mapping) else values

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Whoever gives only one of steps and epochs means just that."""
        match "steps" in values, "epochs" in values:
            case True, False:
                return {"epochs": None}
            case False, True:
                return {"steps": None}
        return {}

    @model_validator(mode="after")
    def _require_end(self) -> Self:
        if self.steps is None and self.epochs is None:
            raise ValueError("needs steps or epochs, or both")
        return self

    def budget(self, steps_per_epoch: int) -> int:
        """In steps; 0: no refinement."""
        return max(self.steps or 0, (self.epochs or 0) * steps_per_epoch)


class GateConfig(Frozen):
    """When a fold is refused, and the model left as it was."""

    max_drop: Fraction = Field(
        0.02,
        description="Largest fall in validation accuracy, overall and for any one class, and below"
        " guessing for a first version; 1 allows every fall.",
    )
    max_class_drop: Fraction | None = Field(
        None, description="The same for one class, if it should differ."
    )
    mode: Literal["chance", "not_worse"] = Field(
        "chance",
        description="chance: a larger fall is refused if chance does not explain it; not_worse: any"
        " larger fall is.",
    )
    significance: float = Field(
        0.05,
        gt=0.0,
        le=1.0,
        description="A larger fall is refused only if chance alone would explain it with at most"
        " this probability (an exact paired test on the same examples); 1 refuses it in any case.",
    )
    max_norm_ratio: float = Field(
        100.0,
        gt=1.0,
        description="Largest root mean square of a source tensor, as a multiple of the merged one.",
    )


class MethodConfig(Frozen):
    """What a method is told; each adds parameters of its own."""

    method: str = Field(description="How a source is folded in.")


class CommonConfig(Frozen):
    """What all candidates of a fold have in common."""

    alignment_batches: int = Field(
        8,
        ge=1,
        le=MAX_BATCHES,
        description="Batches of the target for gradients and for statistics.",
    )
    alignment_batch_size: int = Field(
        32, ge=1, le=MAX_BATCH, description="Examples in each of them."
    )
    norm_stats: Literal["keep", "follow", "recalibrate"] = Field(
        "recalibrate",
        description="Batch-norm statistics: recalibrate them on the target after the merge; keep"
        " them as the method leaves them; or follow: so, too, and grasp takes those of the layers"
        " that it copies.",
    )
    refine: RefineConfig = RefineConfig()
    gate: GateConfig = GateConfig()
    heat: float | None = Field(
        None,
        gt=0.0,
        lt=1.0,
        description="All candidates are refined for this share of the budget, and only the best and"
        " `keep` for the rest of it; null: all for the whole.",
    )
    candidate_seconds: float | None = Field(
        None,
        gt=0.0,
        le=MAX_SECONDS,
        description="A candidate that takes longer is out of the race; null: however long.",
    )
    micro_batch: int | None = Field(
        None,
        ge=1,
        le=MAX_BATCH,
        description="Split every batch into parts of this size to bound activations.",
    )
    precision: Precision = Field("auto", description="Autocast while refining and evaluating.")
    channels_last: bool | None = Field(None, description="Memory layout; None: on CUDA only.")
    compile: str | None = Field(
        None,
        max_length=MAX_WORD,
        description="torch.compile backend for refinement, such as inductor.",
    )
    device: str = Field(
        "auto",
        max_length=MAX_WORD,
        description="auto takes CUDA, then MPS, then the CPU. The service decides itself.",
    )
    seed: int = Field(
        0,
        ge=-MAX_SEED,
        le=MAX_SEED,
        description="Of every random choice, with the version and the source.",
    )
    preset: Literal["paper"] | None = Field(
        None, description="Start from a named set of values; what is given explicitly wins."
    )


class FoldConfig(CommonConfig):
    """A fold: its candidates, and what they have in common.

    `grasp_core.parse_config` reads it from plain values.
    """

    candidates: tuple[SerializeAsAny[MethodConfig], ...] = Field(
        min_length=1, max_length=MAX_CANDIDATES
    )

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(candidate.method for candidate in self.candidates))

    @model_serializer(mode="wrap")
    def _flatten(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """One candidate is written without a list, as when there could be no other."""
        values: dict[str, Any] = serialize(self)
        candidates = values.get("candidates", ())
        if len(candidates) != 1:
            return values
        del values["candidates"]
        return {**candidates[0], **values}


def replace_values(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """`old` with what `new` says, also inside of values that are mappings in both."""
    result = dict(old)
    for name, value in new.items():
        inner = result.get(name)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            result[name] = replace_values(inner, value)
        else:
            result[name] = value
    return result
