"""Image classification as the algorithm sees it, on real images in a real folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor

from grasp_core import (
    Augmentation,
    Batch,
    ImageClassification,
    ModelSpec,
    PreprocessingOverrides,
    TargetError,
)
from grasp_core.data.fingerprint import fingerprint_of
from grasp_core.data.formats import recognise
from grasp_core.data.target import DEFAULT_LIMITS

SPEC = ModelSpec(
    architecture="test_efficientnet",
    classes=("nine", "zero", "one"),  # in another order than folders have, with one more
    preprocessing=PreprocessingOverrides(
        image_size=32, crop_pct=0.8, mean=(0.5,) * 3, std=(0.25,) * 3
    ),
)
AS_THEY_ARE = Augmentation(flip=False, padding=0)


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
def images(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> ImageClassification:
    return ImageClassification.open(folder, SPEC, cache_dir=tmp_path_factory.mktemp("cache"))


def together(batches: list[Batch]) -> Batch:
    return Batch(
        torch.cat([batch.inputs for batch in batches]),
        torch.cat([batch.labels for batch in batches]),
    )


def as_set(inputs: Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in inputs}


def test_labels_are_the_models(images: ImageClassification) -> None:
    batch = together(list(images.evaluation_batches("train", 8)))

    assert sorted(set(batch.labels.tolist())) == [1, 2]  # zero and one; no nine


def test_pixels_are_cropped_and_normalised(images: ImageClassification, folder: Path) -> None:
    batch = next(images.evaluation_batches("train", 1))

    assert batch.inputs.shape == (1, 3, 32, 32)
    assert batch.inputs.min() >= -2  # (0 - 0.5) / 0.25
    assert batch.inputs.max() <= 2
    candidates = []
    for path in folder.rglob("*.png"):
        resized = Image.open(path).convert("RGB").resize((40, 40), Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.asarray(resized.crop((4, 4, 36, 36))).copy())
        candidates.append((pixels.permute(2, 0, 1).float() / 255 - 0.5) / 0.25)
    assert any(torch.allclose(c, batch.inputs[0], atol=0.02) for c in candidates)


def test_alignment_batches_come_from_the_train_split_alone(images: ImageClassification) -> None:
    aligned = together(list(images.alignment_batches(8, 100, seed=1)))
    train = together(list(images.evaluation_batches("train", 8)))
    held_out = together(
        [*images.evaluation_batches("val", 8), *images.evaluation_batches("test", 8)]
    )

    assert as_set(aligned.inputs) == as_set(train.inputs)
    assert not as_set(aligned.inputs) & as_set(held_out.inputs)
    assert [len(batch) for batch in images.alignment_batches(8, 2, seed=1)] == [8, 8]


def test_batches_depend_on_their_seed_alone(images: ImageClassification) -> None:
    def aligned(seed: int) -> Tensor:
        return together(list(images.alignment_batches(8, 2, seed))).inputs

    def trained(seed: int) -> Tensor:
        return together(list(images.training_batches(8, seed, Augmentation()))).inputs

    for draw in (aligned, trained):
        assert torch.equal(draw(1), draw(1))
        assert not torch.equal(draw(1), draw(2))


def test_an_epoch_has_whole_batches_only(images: ImageClassification) -> None:
    sizes = [len(batch) for batch in images.training_batches(10, 0, Augmentation())]

    assert sizes == [10] * images.training_steps(10)
    assert len(list(images.training_batches(1000, 0, Augmentation()))) == 1


def test_augmentation_changes_training_images_only_as_asked(images: ImageClassification) -> None:
    plain = together(list(images.training_batches(28, 3, AS_THEY_ARE)))
    flipped = together(list(images.training_batches(28, 3, Augmentation(flip=True, padding=0))))
    centred = as_set(together(list(images.evaluation_batches("train", 8))).inputs)

    assert not torch.equal(plain.inputs, flipped.inputs)
    assert as_set(plain.inputs) != centred  # the crop is random though the border is not there


def test_classes_that_the_model_lacks_are_an_error(folder: Path, tmp_path: Path) -> None:
    spec = ModelSpec(architecture="test_efficientnet", classes=("zero", "two"))

    with pytest.raises(TargetError, match="classes that the model lacks: one") as caught:
        ImageClassification.open(folder, spec, cache_dir=tmp_path)

    assert caught.value.hint == "the model has zero, two"


def test_unknown_classes_are_left_out_of_the_loss(images: ImageClassification) -> None:
    batch = next(images.evaluation_batches("train", 4))
    logits = torch.tensor([[5.0, 1.0, 2.0]]).repeat(4, 1)
    known = torch.tensor([False, True, True])

    loss = images.loss(lambda inputs: logits, batch, known)  # type: ignore[arg-type]

    expected = torch.nn.functional.cross_entropy(logits[:, 1:], batch.labels - 1)
    assert loss == pytest.approx(float(expected))


def test_the_fingerprint_is_of_images_splits_and_preprocessing(
    images: ImageClassification, folder: Path, tmp_path: Path
) -> None:
    same = ImageClassification.open(folder, SPEC, cache_dir=tmp_path)
    gray = SPEC.model_copy(update={"preprocessing": PreprocessingOverrides(grayscale=True)})
    other = ImageClassification.open(folder, gray, cache_dir=tmp_path)

    assert same.fingerprint == images.fingerprint
    assert other.fingerprint != images.fingerprint


def test_a_known_fingerprint_finds_what_is_cached(
    images: ImageClassification, folder: Path, tmp_path: Path
) -> None:
    known = fingerprint_of(folder, recognise(folder, DEFAULT_LIMITS), DEFAULT_LIMITS)
    ImageClassification.open(folder, SPEC, cache_dir=tmp_path)

    # Cached under that name, the data itself is not needed any more.
    again = ImageClassification.open(tmp_path / "gone", SPEC, cache_dir=tmp_path, fingerprint=known)

    assert again.fingerprint == images.fingerprint
    batches = [next(task.evaluation_batches("train", 8)) for task in (images, again)]
    assert torch.equal(batches[0].inputs, batches[1].inputs)


def test_decoding_tells_how_far_it_is_and_can_be_ended(folder: Path, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def end(fraction: float) -> None:
        raise Enough

    seen: list[float] = []
    with pytest.raises(Enough):
        ImageClassification.open(folder, SPEC, cache_dir=tmp_path, progress=end)
    assert list(tmp_path.iterdir()) == []

    ImageClassification.open(folder, SPEC, cache_dir=tmp_path, progress=seen.append)
    assert seen == [0.0, 1.0]  # forty images are told of once, and at the end
