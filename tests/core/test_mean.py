"""The running mean against the mean of all sources at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from grasp_core import STOP, Checkpoint, FoldReport, FoldStopped, Progress, fold, parse_config
from tests.core.toy import CLASSES, TINY, ToyTask, nudged, quick, save, tiny_weights

MEAN = parse_config({"method": "mean", "norm_stats": "keep", "refine": {"epochs": 0}})
HEAD = ("classifier.weight", "classifier.bias")
Weights = dict[str, Tensor]


def make_sources(folder: Path, count: int, dtype: torch.dtype = torch.float32) -> list[Path]:
    first = tiny_weights(seed=1)
    sources = [nudged(first, 0.1, seed=number) for number in range(count)]
    return [
        save(folder / f"source-{number}.safetensors", cast(weights, dtype))
        for number, weights in enumerate(sources)
    ]


def cast(weights: Weights, dtype: torch.dtype) -> Weights:
    return {n: t.to(dtype) if t.is_floating_point() else t for n, t in weights.items()}


def fold_all(
    folder: Path, sources: Sequence[Path], config: object = MEAN
) -> tuple[Checkpoint, Checkpoint, FoldReport]:
    """The last version, its state and its report, each fold reading only what the last one left."""
    merged = state = report = None
    for number, source in enumerate(sources):
        output, made = folder / f"v{number}.safetensors", folder / f"v{number}"
        report = fold(
            TINY,
            source,
            ToyTask(),
            output,
            merged=merged,
            files={"state/mean": state} if state else {},
            files_output=made,
            config=config,  # type: ignore[arg-type]
            force=True,
        )
        merged, state = output, made / "state" / "mean"
    assert merged
    assert state
    assert report
    return Checkpoint(merged), Checkpoint(state), report


def mean_of(sources: Sequence[Path]) -> Weights:
    """All at once, in float64."""
    files = [Checkpoint(path) for path in sources]
    return {
        name: torch.stack([file[name].double() for file in files]).mean(0)
        for name in files[0]
        if files[0][name].is_floating_point()
    }


def assert_equal(found: Checkpoint, wanted: Weights) -> None:
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name].double(), tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fold_by_fold_is_all_at_once(tmp_path: Path, count: int, dtype: torch.dtype) -> None:
    sources = make_sources(tmp_path, count, dtype)

    merged, state, report = fold_all(tmp_path, sources)

    assert_equal(merged, mean_of(sources))
    assert report.details == {"sources": count}
    assert {p.transferred for p in report.parameters} == {1 / count if count > 1 else True}
    assert int(state["counts"][-1]) == count


def test_the_order_of_the_sources_does_not_matter(tmp_path: Path) -> None:
    sources = make_sources(tmp_path, 5)
    (tmp_path / "back").mkdir()

    forth, _, _ = fold_all(tmp_path, sources)
    back, _, _ = fold_all(tmp_path / "back", sources[::-1])

    assert_equal(forth, {name: back[name].double() for name in mean_of(sources)})


def test_integers_stay_integers(tmp_path: Path) -> None:
    sources = make_sources(tmp_path, 3)

    merged, state, _ = fold_all(tmp_path, sources)

    counters = [name for name in merged if not merged[name].is_floating_point()]
    assert counters
    assert not set(counters) & set(state)
    assert all(torch.equal(merged[name], Checkpoint(sources[0])[name]) for name in counters)


def test_the_state_has_a_constant_size(tmp_path: Path) -> None:
    fold_all(tmp_path, make_sources(tmp_path, 4))

    assert (
        len({(tmp_path / f"v{number}" / "state" / "mean").stat().st_size for number in range(4)})
        == 1
    )


def test_refinement_does_not_enter_the_sums(tmp_path: Path) -> None:
    sources = make_sources(tmp_path, 3)
    (tmp_path / "refined").mkdir()
    refined = parse_config({"method": "mean", "refine": {"epochs": 1, "lr": 1e-2}})

    _, plain, _ = fold_all(tmp_path, sources)
    _, state, report = fold_all(tmp_path / "refined", sources, refined)

    assert report.history
    assert all(torch.equal(plain[name], state[name]) for name in plain)


def test_a_class_is_averaged_over_the_sources_that_know_it(tmp_path: Path) -> None:
    whole = make_sources(tmp_path, 2)
    weights = nudged(tiny_weights(seed=1), 0.1, seed=9)
    dogs = weights | {name: weights[name][1:2] for name in HEAD}
    partial = save(tmp_path / "dogs.safetensors", dogs, classes=CLASSES[1:2])

    merged, state, report = fold_all(tmp_path, [partial, *whole])

    assert state["counts"].tolist() == [2, 3, 2, 3]
    rows = mean_of(whole)
    for name in HEAD:
        known = torch.stack([weights[name][1], *(Checkpoint(path)[name][1] for path in whole)])
        rows[name][1] = known.double().mean(0)
        torch.testing.assert_close(merged[name].double(), rows[name], rtol=1e-5, atol=1e-6)
    assert report.details == {"sources": 3}


def test_a_class_that_no_source_knows_stays_as_the_model_has_it(tmp_path: Path) -> None:
    weights = tiny_weights(seed=1)
    sources = []
    for number in range(2):
        dogs = nudged(weights, 0.1, seed=number)
        dogs |= {name: dogs[name][1:2] for name in HEAD}
        sources.append(save(tmp_path / f"{number}.safetensors", dogs, classes=CLASSES[1:2]))
    config = parse_config({"method": "mean", "refine": {"epochs": 1, "lr": 1e-2}})
    first, _, _ = fold_all(tmp_path, sources[:1], config)

    report = fold(
        TINY,
        sources[1],
        ToyTask(),
        tmp_path / "second.safetensors",
        merged=tmp_path / "v0.safetensors",
        files={"state/mean": tmp_path / "v0" / "state" / "mean"},
        files_output=tmp_path / "second",
        config=MEAN,
        force=True,
    )

    second = Checkpoint(tmp_path / "second.safetensors")
    assert report.accepted
    for name in HEAD:
        assert torch.equal(second[name][[0, 2]], first[name][[0, 2]])


def test_a_model_of_another_method_counts_as_one_source(tmp_path: Path) -> None:
    sources = make_sources(tmp_path, 2)
    before = tmp_path / "grasp.safetensors"
    fold(TINY, sources[0], ToyTask(), before, config=quick(), force=True)
    output = tmp_path / "mean.safetensors"

    report = fold(
        TINY,
        sources[1],
        ToyTask(),
        output,
        merged=before,
        files_output=tmp_path / "mean",
        config=MEAN,
        force=True,
    )

    assert report.details == {"sources": 2}
    assert_equal(Checkpoint(output), mean_of([before, sources[1]]))


def test_an_interrupted_fold_ends_in_the_same_bytes(tmp_path: Path) -> None:
    sources = make_sources(tmp_path, 1)
    config = parse_config({"method": "mean", "refine": {"epochs": 3, "batch_size": 16}})
    _, state, whole = fold_all(tmp_path, sources, config)

    def stop(progress: Progress) -> object:
        return STOP if progress.metrics.get("epoch", 0) >= 2 else None

    def again(progress: object = None) -> FoldReport:
        return fold(
            TINY,
            sources[0],
            ToyTask(),
            tmp_path / "again.safetensors",
            files_output=tmp_path / "again",
            config=config,
            work_dir=tmp_path / "work",
            progress=progress,  # type: ignore[arg-type]
            force=True,
        )

    with pytest.raises(FoldStopped):
        again(stop)
    report = again()

    assert report.resumed_from_epoch == 1
    assert (report.sha256, report.files) == (whole.sha256, whole.files)
    assert [file.sha256 for file in report.files] == [state.sha256]
