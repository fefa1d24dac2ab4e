"""A manifest names every difference between a file and a model."""

import pickle

import pytest

from grasp_core.errors import CheckpointMismatch
from grasp_core.manifest import SHOWN, Found, Manifest, TensorSpec

MANIFEST = Manifest(
    architecture="tiny",
    classes=3,
    tensors={
        "stem.weight": TensorSpec(shape=(8, 3, 3, 3), dtype="F32", kind="parameter"),
        "bn.weight": TensorSpec(shape=(8,), dtype="F32", kind="parameter"),
        "bn.running_mean": TensorSpec(shape=(8,), dtype="F32", kind="buffer"),
        "bn.num_batches_tracked": TensorSpec(shape=(), dtype="I64", kind="buffer"),
        "fc.weight": TensorSpec(shape=(3, 8), dtype="F32", kind="parameter", head=True),
        "fc.bias": TensorSpec(shape=(3,), dtype="F32", kind="parameter", head=True),
    },
)


def fitting(**changes: Found | None) -> dict[str, Found]:
    """A file that fits, with tensors changed or (None) removed; `__` stands for a dot."""
    found = {name: Found(spec.shape, spec.dtype) for name, spec in MANIFEST.tensors.items()}
    for name, change in changes.items():
        found.pop(name.replace("__", "."), None)
        if change is not None:
            found[name.replace("__", ".")] = change
    return found


def mismatch(found: dict[str, Found], classes: int | None = None) -> CheckpointMismatch:
    with pytest.raises(CheckpointMismatch) as caught:
        MANIFEST.require(found, name="site-a", classes=classes)
    return caught.value


def test_a_file_with_the_same_tensors_fits() -> None:
    MANIFEST.require(fitting(), name="site-a")

    assert not MANIFEST.compare(fitting())


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F64"])
def test_another_float_precision_fits(dtype: str) -> None:
    assert not MANIFEST.compare(fitting(fc__bias=Found((3,), dtype)))


def test_all_differences_are_found_at_once_by_name() -> None:
    found = fitting(
        stem__weight=None,
        extra=Found((1,), "F32"),
        bn__weight=Found((9,), "F32"),
        bn__running_mean=Found((8,), "I64"),
    )

    error = mismatch(found)

    assert error.mismatches.missing == ["stem.weight"]
    assert error.mismatches.unexpected == ["extra"]
    assert error.mismatches.wrong_shape == {"bn.weight": ((8,), (9,))}
    assert error.mismatches.wrong_dtype == {"bn.running_mean": ("F32", "I64")}
    assert error.message == (
        "site-a is not a tiny checkpoint: 1 missing: stem.weight; 1 unexpected: extra;"
        " 1 of another shape: bn.weight [9] instead of [8];"
        " 1 of another type: bn.running_mean I64 instead of F32"
    )
    assert "trained as tiny" in str(error)


def test_a_float_where_a_counter_should_be_is_of_another_type() -> None:
    found = fitting(bn__num_batches_tracked=Found((), "F32"))

    assert MANIFEST.compare(found).wrong_dtype == {"bn.num_batches_tracked": ("I64", "F32")}


def test_old_checkpoints_may_lack_the_step_counter() -> None:
    assert not MANIFEST.compare(fitting(bn__num_batches_tracked=None))


def test_a_source_with_other_classes_has_another_number_of_head_rows() -> None:
    found = fitting(fc__weight=Found((5, 8), "F32"), fc__bias=Found((5,), "F32"))

    MANIFEST.require(found, name="site-a", classes=5)

    assert set(mismatch(found).mismatches.wrong_shape) == MANIFEST.heads()
    assert set(mismatch(fitting(), classes=5).mismatches.wrong_shape) == MANIFEST.heads()


def test_only_the_head_differs_asks_for_class_names() -> None:
    head_only = mismatch(fitting(fc__bias=Found((5,), "F32")))
    more = mismatch(fitting(fc__bias=Found((5,), "F32"), extra=Found((1,), "F32")))

    assert head_only.hint is not None
    assert "class names" in head_only.hint
    assert more.hint is not None
    assert "class names" not in more.hint


def test_a_long_message_is_shortened_and_the_attributes_are_not() -> None:
    found = fitting(**{f"extra{i}": Found((1,), "F32") for i in range(SHOWN + 7)})

    error = mismatch(found)

    assert f"{SHOWN + 7} unexpected: extra0, " in error.message
    assert error.message.endswith(f"extra{SHOWN - 1} and 7 more")
    assert len(error.mismatches.unexpected) == SHOWN + 7


def test_exactly_as_many_as_are_shown_are_not_shortened() -> None:
    found = fitting(**{f"extra{i}": Found((1,), "F32") for i in range(SHOWN)})

    assert "more" not in mismatch(found).message


def test_the_error_survives_the_way_from_a_child_process() -> None:
    error = mismatch(fitting(stem__weight=None))

    again = pickle.loads(pickle.dumps(error))

    assert isinstance(again, CheckpointMismatch)
    assert str(again) == str(error)
    assert again.mismatches == error.mismatches
    assert again.code == "checkpoint_mismatch"


def test_json_and_back() -> None:
    assert Manifest.model_validate_json(MANIFEST.model_dump_json()) == MANIFEST


def test_parameters_are_not_buffers() -> None:
    assert list(MANIFEST.parameters()) == ["stem.weight", "bn.weight", "fc.weight", "fc.bias"]
