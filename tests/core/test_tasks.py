"""Image classification as the algorithm sees it, on real images in a real folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor

from grasp_core import Batch, ModelSpec, TargetError, Task, open_task
from grasp_core.data.formats import fingerprint_of, recognise
from grasp_core.data.target import DEFAULT_LIMITS
from grasp_core.kinds.image.config import PreprocessingOverrides
from grasp_core.kinds.image.formats import FORMATS
from grasp_core.tasks import Augmentation

SPEC = ModelSpec(
    architecture="test_efficientnet",
    classes=("nine", "zero", "one"),  # in another order than folders have, with one more
    preprocessing=PreprocessingOverrides(
        image_size=32, crop_pct=0.8, mean=(0.5,) * 3, std=(0.25,) * 3
    ),
)
AS_THEY_ARE: Augmentation = {"flip": False, "padding": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty digits: zeros and ones."""
    root = tmp_path_factory.mktemp("digits")
    digits = load_digits()
    for label, name in enumerate(("zero", "one")):
        (root / name).mkdir()
        for number, image in enumerate(digits.images[digits.target == label][:20]):
            pixels = Image.fromarray((image * 15).astype(np.uint8))
            pixels.save(root / name / f"{number:02}.png")
    return root


@pytest.fixture(scope="module")
def images(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Task:
    return open_task(folder, SPEC, cache_dir=tmp_path_factory.mktemp("cache"))


def together(batches: list[Batch]) -> Batch:
    return Batch(
        {"x": torch.cat([batch.inputs["x"] for batch in batches])},
        torch.cat([batch.labels for batch in batches]),
    )


def as_set(inputs: Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in inputs}


def test_labels_are_the_models(images: Task) -> None:
    batch = together(list(images.evaluation_batches("train", 8)))

    assert sorted(set(batch.labels.tolist())) == [1, 2]  # zero and one; no nine


def test_pixels_are_cropped_and_normalised(images: Task, folder: Path) -> None:
    batch = next(images.evaluation_batches("train", 1))

    assert batch.inputs["x"].shape == (1, 3, 32, 32)
    assert batch.inputs["x"].min() >= -2  # (0 - 0.5) / 0.25
    assert batch.inputs["x"].max() <= 2
    candidates = []
    for path in folder.rglob("*.png"):
        resized = Image.open(path).convert("RGB").resize((40, 40), Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.asarray(resized.crop((4, 4, 36, 36))).copy())
        candidates.append((pixels.permute(2, 0, 1).float() / 255 - 0.5) / 0.25)
    assert any(torch.allclose(c, batch.inputs["x"][0], atol=0.02) for c in candidates)


def test_alignment_batches_come_from_the_train_split_alone(images: Task) -> None:
    aligned = together(list(images.alignment_batches(8, 100, seed=1)))
    train = together(list(images.evaluation_batches("train", 8)))
    held_out = together(
        [*images.evaluation_batches("val", 8), *images.evaluation_batches("test", 8)]
    )

    assert as_set(aligned.inputs["x"]) == as_set(train.inputs["x"])
    assert not as_set(aligned.inputs["x"]) & as_set(held_out.inputs["x"])
    assert [len(batch) for batch in images.alignment_batches(8, 2, seed=1)] == [8, 8]


def test_batches_depend_on_their_seed_alone(images: Task) -> None:
    def aligned(seed: int) -> Tensor:
        return together(list(images.alignment_batches(8, 2, seed))).inputs["x"]

    def trained(seed: int) -> Tensor:
        return together(list(images.training_batches(8, seed, {}))).inputs["x"]

    for draw in (aligned, trained):
        assert torch.equal(draw(1), draw(1))
        assert not torch.equal(draw(1), draw(2))


def test_an_epoch_has_whole_batches_only(images: Task) -> None:
    sizes = [len(batch) for batch in images.training_batches(10, 0, {})]

    assert sizes == [10] * images.training_steps(10)
    assert len(list(images.training_batches(1000, 0, {}))) == 1


def test_augmentation_changes_training_images_only_as_asked(images: Task) -> None:
    plain = together(list(images.training_batches(28, 3, AS_THEY_ARE)))
    flipped = together(list(images.training_batches(28, 3, {"flip": True, "padding": 0})))
    centred = as_set(together(list(images.evaluation_batches("train", 8))).inputs["x"])

    assert not torch.equal(plain.inputs["x"], flipped.inputs["x"])
    assert as_set(plain.inputs["x"]) != centred  # the crop is random though the border is not there


def test_classes_that_the_model_lacks_are_an_error(folder: Path, tmp_path: Path) -> None:
    spec = ModelSpec(architecture="test_efficientnet", classes=("zero", "two"))

    with pytest.raises(TargetError, match="classes that the model lacks: one") as caught:
        open_task(folder, spec, cache_dir=tmp_path)

    assert caught.value.hint == "the model has zero, two"


def test_unknown_classes_are_left_out_of_the_loss(images: Task) -> None:
    batch = next(images.evaluation_batches("train", 4))
    logits = torch.tensor([[5.0, 1.0, 2.0]]).repeat(4, 1)
    known = torch.tensor([False, True, True])

    loss = images.loss(lambda x: logits, batch, known)  # type: ignore[arg-type]

    expected = torch.nn.functional.cross_entropy(logits[:, 1:], batch.labels - 1)
    assert loss == pytest.approx(float(expected))


def test_the_fingerprint_is_of_images_splits_and_preprocessing(
    images: Task, folder: Path, tmp_path: Path
) -> None:
    same = open_task(folder, SPEC, cache_dir=tmp_path)
    gray = SPEC.model_copy(update={"preprocessing": PreprocessingOverrides(grayscale=True)})
    other = open_task(folder, gray, cache_dir=tmp_path)

    assert same.fingerprint == images.fingerprint
    assert other.fingerprint != images.fingerprint


def test_a_known_fingerprint_finds_what_is_cached(
    images: Task, folder: Path, tmp_path: Path
) -> None:
    found = recognise(folder, FORMATS, DEFAULT_LIMITS)
    known = fingerprint_of(folder, found.files(folder, DEFAULT_LIMITS))
    open_task(folder, SPEC, cache_dir=tmp_path)

    # Cached under that name, the data itself is not needed any more.
    again = open_task(tmp_path / "gone", SPEC, cache_dir=tmp_path, fingerprint=known)

    assert again.fingerprint == images.fingerprint
    batches = [next(task.evaluation_batches("train", 8)) for task in (images, again)]
    assert torch.equal(batches[0].inputs["x"], batches[1].inputs["x"])


def test_decoding_tells_how_far_it_is_and_can_be_ended(folder: Path, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def end(fraction: float) -> None:
        raise Enough

    seen: list[float] = []
    with pytest.raises(Enough):
        open_task(folder, SPEC, cache_dir=tmp_path, progress=end)
    assert list(tmp_path.iterdir()) == []

    open_task(folder, SPEC, cache_dir=tmp_path, progress=seen.append)
    assert seen == [0.0, 1.0]  # forty images are told of once, and at the end
