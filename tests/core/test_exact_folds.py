"""Methods that fold source by source against their batch forms: all sources at once, in float64.

The batch forms are written here, from the papers, and share no code with the methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grasp_core import Checkpoint, ModelSpec, parse_config
from grasp_core.candidates import Candidate
from grasp_core.inputs import Inputs
from grasp_core.methods import METHODS
from grasp_core.progress import Recorder
from grasp_core.race import name_candidates, plan_fold
from grasp_core.runtime import Runtime, deterministic
from tests.core.toy import CLASSES, ToyTask, nudged, save

VIT = ModelSpec(architecture="test_vit", classes=CLASSES, preprocessing={"image_size": 32})
CNN = ModelSpec(architecture="test_efficientnet", classes=CLASSES)
COMMON = {"norm_stats": "keep", "alignment_batches": 1, "alignment_batch_size": 8}
HEADS = {VIT.architecture: "head", CNN.architecture: "classifier"}

Weights = dict[str, Tensor]
Tensors = Sequence[Tensor]


def fresh_model(spec: ModelSpec) -> nn.Module:
    options: dict[str, Any] = {"img_size": 32} if spec is VIT else {}
    return timm.create_model(spec.architecture, num_classes=len(CLASSES), **options)


def base_weights(spec: ModelSpec) -> Weights:
    torch.manual_seed(0)
    model = fresh_model(spec).train()
    with torch.no_grad():
        model(torch.randn(8, 3, 32, 32))  # statistics of batch norm
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def make_sources(
    folder: Path, spec: ModelSpec, count: int, dtype: torch.dtype = torch.float32
) -> list[Path]:
    base = base_weights(spec)
    save(folder / "base.safetensors", base)
    paths = []
    for number in range(count):
        moved = nudged(base, 0.02 * (1 + number % 3), seed=number + 1)
        cast = {n: t.to(dtype) if t.is_floating_point() else t for n, t in moved.items()}
        paths.append(save(folder / f"source{number}.safetensors", cast))
    return paths


def merge_one(
    folder: Path, spec: ModelSpec, source: Path, before: Mapping[str, Path], **parameters: object
) -> dict[str, Path]:
    """What one candidate merged to, as `merged`, and what it remembers."""
    config = parse_config(COMMON | parameters)
    ((name, own),) = name_candidates(config.candidates).items()
    files = {n: path for n, path in before.items() if n != "merged"}
    inputs = Inputs.open(spec, source, before.get("merged"), None, None, files=files)
    runtime = Runtime.choose(config)
    recorder = Recorder(runtime.device, plan=plan_fold(config))
    folder.mkdir(parents=True, exist_ok=True)
    with deterministic():
        bench = inputs.workbench(ToyTask(), config, runtime, recorder, folder, None, remembers=True)
        candidate = Candidate(bench, name, own)
        candidate.merge()
    assert candidate.error is None, str(candidate.error)
    shares = {each.name: float(each.transferred) for each in candidate.merged.parameters}
    assert all(0.0 <= share <= 1.0 for share in shares.values())
    made = {file.name: folder / name / "kept" / file.name for file in candidate.merged.files}
    return files | made | {"merged": folder / name / "start.safetensors"}


def fold_all(
    folder: Path, spec: ModelSpec, sources: Sequence[Path], **parameters: object
) -> tuple[Checkpoint, Checkpoint]:
    """The merged model and the state, each fold reading only what the last one left."""
    files = {"base": sources[0].with_name("base.safetensors")}
    for number, source in enumerate(sources):
        files = merge_one(folder / str(number), spec, source, files, **parameters)
    state = files[f"state/{parameters['method']}"]
    return Checkpoint(files["merged"]), Checkpoint(state)


# The batch forms, of one parameter: from its base, and all sources' differences from it.


def trim(vector: Tensor, share: float) -> Tensor:
    count = max(1, int(share * vector.numel()))
    smallest = vector.abs().flatten().sort(descending=True).values[count - 1]
    return vector * (vector.abs() >= smallest)


def task_arithmetic(vectors: Tensors) -> Tensor:
    return 0.3 * sum(vectors)  # type: ignore[return-value]


def ties(vectors: Tensors) -> Tensor:
    stack = torch.stack([trim(vector, 0.2) for vector in vectors])
    weight = stack.sum(0)
    weight[weight.abs() <= 1e-5 * stack.abs().sum(0)] = 0.0
    agree = (stack.sign() == weight.sign()) & (stack != 0)
    return (stack * agree).sum(0) / agree.sum(0).clamp(min=1)


def magmax(vectors: Tensors) -> Tensor:
    stack = torch.stack(list(vectors))
    largest = stack.abs().max(0).values
    return 0.5 * torch.where((stack == largest).any(0), largest, -largest)


def model_stock(vectors: Tensors) -> Tensor:
    k, mean = len(vectors), torch.stack(list(vectors)).mean(0)
    if k == 1:
        return mean
    flat = [vector.flatten() for vector in vectors]
    pairs = [(i, j) for i in range(k) for j in range(i)]
    cosine = max(
        0.0, float(sum(F.cosine_similarity(flat[i], flat[j], 0) for i, j in pairs)) / len(pairs)
    )
    return k * cosine / (1 + (k - 1) * cosine) * mean


def matrices(name: str, tensor: Tensor) -> Tensors | None:
    """None: it is no matrix."""
    if tensor.ndim not in (2, 4) or 1 in tensor.shape[:2]:
        return None
    return tensor.flatten(1).chunk(3 if "qkv" in name else 1)


def iso_c(name: str, vectors: Tensors) -> Tensor:
    total = torch.stack(list(vectors)).sum(0)
    parts = matrices(name, total)
    if parts is None:
        return total / len(vectors)
    flat = []
    for part in parts:
        u, s, vh = torch.linalg.svd(part, full_matrices=False)
        flat.append(u @ torch.diag(torch.full_like(s, float(s.mean()))) @ vh)
    return torch.cat(flat).reshape(total.shape)


def wudi(name: str, vectors: Tensors) -> Tensor:
    """By autograd, from the objective as it is written."""
    if matrices(name, vectors[0]) is None:
        return torch.stack(list(vectors)).mean(0)
    flat = [vector.flatten(1) for vector in vectors]
    merged = torch.stack(flat).sum(0).requires_grad_()
    optimizer = torch.optim.Adam([merged], lr=1e-5)
    for _ in range(20):
        optimizer.zero_grad()
        loss = sum(((merged - v) @ v.T).square().sum() / v.square().sum() for v in flat)
        loss.backward()  # type: ignore[union-attr]
        optimizer.step()
    return merged.detach().reshape(vectors[0].shape)


SIMPLE: dict[str, tuple[Callable[[str, Tensors], Tensor], dict[str, object]]] = {
    "task_arithmetic": (lambda _, vectors: task_arithmetic(vectors), {}),
    "ties": (lambda _, vectors: ties(vectors), {}),
    "magmax": (lambda _, vectors: magmax(vectors), {}),
    "model_stock": (lambda _, vectors: model_stock(vectors), {}),
    "iso_c": (iso_c, {}),
    "wudi": (wudi, {"steps": 20}),
}


def is_parameter(spec: ModelSpec) -> set[str]:
    return {name for name, _ in fresh_model(spec).named_parameters()}


def batch_form(spec: ModelSpec, sources: Sequence[Path], method: str) -> Weights:
    base, rule = base_weights(spec), SIMPLE[method][0]
    files = [Checkpoint(path) for path in sources]
    merged = {}
    for name, tensor in base.items():
        if tensor.is_floating_point():
            vectors = [file[name].double() - tensor.double() for file in files]
            trained = name in is_parameter(spec)
            vector = rule(name, vectors) if trained else torch.stack(vectors).mean(0)
            merged[name] = tensor.double() + vector
    return merged


def assert_equal(found: Mapping[str, Tensor], wanted: Weights, atol: float = 2e-6) -> None:
    for name, tensor in wanted.items():
        values = found[name].double()
        assert torch.allclose(values, tensor, 1e-4, atol), (name, (values - tensor).abs().max())


@pytest.mark.parametrize("count", [1, 2, 5, pytest.param(20, marks=pytest.mark.proof)])
@pytest.mark.parametrize("method", SIMPLE)
def test_fold_by_fold_is_all_at_once(tmp_path: Path, method: str, count: int) -> None:
    sources = make_sources(tmp_path, VIT, count)

    merged, state = fold_all(tmp_path, VIT, sources, method=method, **SIMPLE[method][1])

    assert_equal(merged, batch_form(VIT, sources, method))
    assert int(state["counts"][-1]) == count


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.proof)]
)
@pytest.mark.parametrize("method", SIMPLE)
def test_of_convolutions_in_half_precision(tmp_path: Path, method: str, dtype: torch.dtype) -> None:
    sources = make_sources(tmp_path, CNN, 3, dtype)

    merged, _ = fold_all(tmp_path, CNN, sources, method=method, **SIMPLE[method][1])

    assert_equal(merged, batch_form(CNN, sources, method))
    counters = [name for name in merged if not merged[name].is_floating_point()]
    assert counters
    assert all(torch.equal(merged[n], Checkpoint(sources[0])[n]) for n in counters)


@pytest.mark.parametrize("method", [*SIMPLE, "fisher", "regmean", "mean"])
def test_the_order_does_not_matter(tmp_path: Path, method: str) -> None:
    sources = make_sources(tmp_path, VIT, 3)
    options = SIMPLE[method][1] if method in SIMPLE else {}

    forth, _ = fold_all(tmp_path / "forth", VIT, sources, method=method, **options)
    back, _ = fold_all(tmp_path / "back", VIT, sources[::-1], method=method, **options)

    # One batch of a few examples: nearly singular for a layer of 64 inputs.
    atol = 1e-4 if method == "regmean" else 2e-6
    assert_equal(forth, {name: back[name].double() for name in back}, atol)


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"keep", "source", "grasp"}))
def test_the_state_has_a_constant_size(tmp_path: Path, method: str) -> None:
    sources = make_sources(tmp_path, CNN, 3)
    files = {"base": tmp_path / "base.safetensors"}

    sizes = set()
    for number, source in enumerate(sources):
        files = merge_one(tmp_path / str(number), CNN, source, files, method=method)
        sizes.add(files[f"state/{method}"].stat().st_size)

    assert len(sizes) == 1


def gradients_squared(model: nn.Module, images: Tensor, labels: Tensor) -> Weights:
    sums = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for image, label in zip(images, labels, strict=True):
        model.zero_grad()
        F.cross_entropy(model(image[None]), label[None]).backward()
        for name, parameter in model.named_parameters():
            sums[name] += parameter.grad.square() / len(images)  # type: ignore[union-attr]
    return sums


def load(spec: ModelSpec, path: Path) -> nn.Module:
    model = fresh_model(spec)
    model.load_state_dict(dict(Checkpoint(path)))
    return model.eval().double()


def seen_images() -> tuple[Tensor, Tensor]:
    """Those of the one batch that a fold looks at are others in each fold; all, so that they are
    the same."""
    train = ToyTask().splits["train"]
    return train.inputs["x"].double(), train.labels


ALL_TRAIN = {"alignment_batches": 4, "alignment_batch_size": 16}


@pytest.mark.parametrize("count", [1, 4])
def test_fisher_is_all_at_once(tmp_path: Path, count: int) -> None:
    sources = make_sources(tmp_path, CNN, count)

    merged, _ = fold_all(tmp_path, CNN, sources, method="fisher", **ALL_TRAIN)

    models = [load(CNN, path) for path in sources]
    weights = [gradients_squared(model, *seen_images()) for model in models]
    wanted = {}
    for name in is_parameter(CNN):
        pairs = [
            (w[name] + 1e-6, m.get_parameter(name)) for w, m in zip(weights, models, strict=True)
        ]
        wanted[name] = sum(w * p for w, p in pairs).detach() / sum(w for w, _ in pairs)  # type: ignore[union-attr]
    assert_equal(merged, wanted, atol=1e-5)


@pytest.mark.parametrize("count", [1, 4])
def test_regmean_is_all_at_once(tmp_path: Path, count: int) -> None:
    sources = make_sources(tmp_path, VIT, count)

    merged, _ = fold_all(tmp_path, VIT, sources, method="regmean", **ALL_TRAIN)

    images, _ = seen_images()
    models = [load(VIT, path) for path in sources]
    grams = [inputs_of(model, images) for model in models]
    assert grams[0]
    for name in grams[0]:
        total = sum(gram[name] for gram in grams)
        weighted = sum(
            m.get_parameter(name) @ gram[name] for m, gram in zip(models, grams, strict=True)
        )
        wanted = torch.linalg.solve(total, weighted, left=False).detach()
        torch.testing.assert_close(merged[name].double(), wanted, rtol=1e-2, atol=2e-4)
    mean = torch.stack([model.get_parameter("head.weight") for model in models]).mean(0).detach()
    torch.testing.assert_close(merged["head.weight"].double(), mean, rtol=1e-5, atol=1e-6)


def inputs_of(model: nn.Module, images: Tensor) -> Weights:
    """XᵀX / n of every linear layer but the head, nine tenths of it off the diagonal."""
    seen: dict[str, Tensor] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and name != "head":
            layer.register_forward_pre_hook(
                lambda _, args, name=name: seen.__setitem__(f"{name}.weight", args[0])
            )
    with torch.no_grad():
        model(images)
    grams = {}
    for name, inputs in seen.items():
        x = inputs.reshape(-1, inputs.shape[-1])
        gram = x.T @ x / len(x)
        diagonal = torch.diag(gram.diagonal())
        grams[name] = (
            0.9 * gram + 0.1 * diagonal + 1e-6 * diagonal.diagonal().mean() * torch.eye(len(gram))
        )
    return grams


def test_opcm_is_the_published_rule(tmp_path: Path) -> None:
    """Sequentially, with whole singular value decompositions, as its authors' program."""
    sources = make_sources(tmp_path, VIT, 5)

    merged, _ = fold_all(tmp_path, VIT, sources, method="opcm")

    base, names = base_weights(VIT), is_parameter(VIT)
    vectors = [
        {name: Checkpoint(path)[name].double() - base[name].double() for name in names}
        for path in sources
    ]
    total = dict(vectors[0])
    for vector in vectors[1:]:
        total = {name: total[name] + outside(name, vector[name], total[name]) for name in names}

    def length(weights: Weights) -> float:
        return float(sum(tensor.square().sum() for tensor in weights.values()) ** 0.5)

    factor = sum(map(length, vectors)) / len(vectors) / length(total)
    wanted = {name: base[name].double() + factor * total[name] for name in names}
    assert_equal(merged, wanted, atol=1e-5)


def outside(name: str, vector: Tensor, total: Tensor) -> Tensor:
    whole, parts = matrices(name, vector), matrices(name, total)
    if whole is None or parts is None:
        return vector
    cleaned = []
    for matrix, before in zip(whole, parts, strict=True):
        u, s, vh = torch.linalg.svd(before, full_matrices=True)
        inside = u.T @ matrix @ vh.T
        split = int((s.cumsum(0) / s.sum() > 0.5).float().argmax())
        inside.diagonal().fill_(0)
        inside[:split, :split] = 0
        cleaned.append(u @ inside @ vh)
    return torch.cat(cleaned).reshape(vector.shape)


def moved(folder: Path, source: Path, **options: object) -> Weights:
    """What arrives of a task vector."""
    merged, _ = fold_all(folder, VIT, [source], method="task_arithmetic", scale=1.0, **options)
    base = base_weights(VIT)
    return {name: merged[name] - base[name] for name in base}


def test_dropped_entries_are_chosen_by_the_source_and_made_up_for(tmp_path: Path) -> None:
    one, other = make_sources(tmp_path, VIT, 2)
    whole = moved(tmp_path / "whole", one)

    dropped = moved(tmp_path / "dropped", one, drop=0.75)
    again = moved(tmp_path / "again", one, drop=0.75)
    others = moved(tmp_path / "others", other, drop=0.75)

    name = "blocks.0.mlp.fc1.weight"
    kept = dropped[name] != 0
    assert abs(float(kept.float().mean()) - 0.25) < 0.02
    torch.testing.assert_close(dropped[name][kept], 4 * whole[name][kept], rtol=1e-4, atol=1e-6)
    assert torch.equal(again[name], dropped[name])
    assert not torch.equal(others[name] != 0, kept)


def test_the_largest_and_the_smallest_entries_are_left_out(tmp_path: Path) -> None:
    (source,) = make_sources(tmp_path, VIT, 1)
    whole = moved(tmp_path / "whole", source)

    trimmed = moved(tmp_path / "trimmed", source, density=0.3, gamma=0.1)

    name = "blocks.0.mlp.fc1.weight"
    order = whole[name].abs().flatten().argsort(descending=True)
    first = int(0.1 * len(order))
    last = first + int(0.3 * len(order))
    flat = trimmed[name].flatten()
    assert torch.equal(flat[order[first:last]], whole[name].flatten()[order[first:last]])
    assert not flat[order[:first]].any()
    assert not flat[order[last:]].any()


def test_layers_are_scaled_by_their_depth(tmp_path: Path) -> None:
    (source,) = make_sources(tmp_path, VIT, 1)
    whole = moved(tmp_path / "whole", source)

    scaled = moved(tmp_path / "scaled", source, shallow=0.2)

    names = [name for name, _ in fresh_model(VIT).named_parameters()]
    for depth, name in enumerate(names):
        factor = 0.2 + 0.8 * depth / (len(names) - 1)
        torch.testing.assert_close(scaled[name], factor * whole[name], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("method", ["task_arithmetic", "ties", "magmax", "fisher", "mean"])
def test_a_class_is_merged_from_the_sources_that_know_it(tmp_path: Path, method: str) -> None:
    sources = make_sources(tmp_path, VIT, 3)
    known = {
        name: tensor[:2] if name.startswith("head.") else tensor
        for name, tensor in dict(Checkpoint(sources[1])).items()
    }
    partial = save(tmp_path / "partial.safetensors", known, classes=CLASSES[:2])

    all_three, state = fold_all(
        tmp_path / "three", VIT, [sources[0], partial, sources[2]], method=method
    )
    two, _ = fold_all(tmp_path / "two", VIT, [sources[0], sources[2]], method=method)

    assert state["counts"].tolist() == [3, 3, 2, 3]
    if method != "fisher":  # whose loss, and so its gradients, are of the known classes alone
        assert torch.allclose(all_three["head.weight"][2], two["head.weight"][2], 1e-4, 1e-6)
    assert not torch.allclose(all_three["head.weight"][0], two["head.weight"][0], 1e-4, 1e-6)


def test_a_model_of_another_method_counts_as_one_source(tmp_path: Path) -> None:
    before, source = make_sources(tmp_path, VIT, 2)
    files = {"base": tmp_path / "base.safetensors", "merged": before}

    made = merge_one(tmp_path / "fold", VIT, source, files, method="task_arithmetic")

    assert int(Checkpoint(made["state/task_arithmetic"])["counts"][-1]) == 2
    wanted = batch_form(VIT, [before, source], "task_arithmetic")
    assert_equal(Checkpoint(made["merged"]), wanted)


def test_one_that_needs_its_history_does_not_take_over(tmp_path: Path) -> None:
    before, source = make_sources(tmp_path, VIT, 2)
    files = {"base": tmp_path / "base.safetensors", "merged": before}

    with pytest.raises(AssertionError, match="opcm cannot take over what was merged without it"):
        merge_one(tmp_path / "fold", VIT, source, files, method="opcm")


def test_a_variance_stays_above_zero(tmp_path: Path) -> None:
    """Buffers are averaged: a sum of their differences would lead anywhere."""
    sources = make_sources(tmp_path, CNN, 3)
    shrunk = []
    for number, path in enumerate(sources):
        weights = dict(Checkpoint(path))
        weights |= {n: t * 0.01 for n, t in weights.items() if n.endswith("running_var")}
        shrunk.append(save(tmp_path / f"shrunk{number}.safetensors", weights))
    save(tmp_path / "base.safetensors", base_weights(CNN))

    merged, _ = fold_all(tmp_path, CNN, shrunk, method="task_arithmetic", scale=3.0)

    variances = [merged[name] for name in merged if name.endswith("running_var")]
    assert variances
    assert all(float(variance.min()) > 0 for variance in variances)
