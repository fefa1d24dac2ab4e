"""The parameters of a fold, as people write them and as they are stored.

What candidates have in common stands beside `candidates`: a list of methods, by name or with
parameters of their own. Where there is one candidate, its parameters may stand among the others:
`{"method": "grasp", "tau": 0.3, "refine": {…}}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from grasp_core.config import CommonConfig, FoldConfig, MethodConfig, RefineConfig, replace_values
from grasp_core.errors import ConfigError, Unloadable
from grasp_core.kinds import check_augmentation, find_kind
from grasp_core.methods import DEFAULT, METHODS
from grasp_core.methods.declaration import AnyMethod

Values = Mapping[str, Any]

ALL = "all"  # methods that are installed, as candidates
DEFAULT_CANDIDATES = ("keep", "source", "mean", "grasp")  # docs/adr/0016
PRESETS: dict[str, dict[str, Any]] = {
    # The authors' released code: the source in eval mode, the merged model in train mode (whose
    # running statistics drift on the way and are never transferred), one batch, hard copies.
    "paper": {
        "method": "grasp",
        "tau": 0.3,
        "granularity": "tensor",
        "blend": 1.0,
        "alignment_batches": 1,
        "alignment_batch_size": 32,
        "merged_mode": "train",
        "source_mode": "eval",
        "norm_stats": "keep",
        "epsilon": 1e-8,
        "refine": {"schedule": "epoch", "steps": None, "epochs": 3, "lr": 5e-5},
    },
}


def parse_config(values: object) -> FoldConfig:
    """Raises ValidationError with all that is wrong, also for a method that does not exist, and by
    name for parameters that only other methods have."""
    if isinstance(values, FoldConfig):
        return values
    if not isinstance(values, Mapping):
        return FoldConfig.model_validate(values)
    values = _expand(values)
    own = _own(values)
    flat = bool(own) and "candidates" not in values
    problems: list[InitErrorDetails] = []
    common = {name: value for name, value in values.items() if name not in own}
    if flat:
        common["candidates"] = [own]
    candidates = _parse_candidates(common.get("candidates", DEFAULT_CANDIDATES), problems, flat)
    if not flat:
        problems += _find_strays(own, candidates)
    try:
        config = FoldConfig.model_validate(common | {"candidates": candidates})
    except ValidationError as error:
        problems += _restate(error, ())
    if problems:
        raise ValidationError.from_exception_data("FoldConfig", problems)
    return config


def change_config(values: Values, changes: Values) -> FoldConfig:
    """The parameters `values` with some replaced; other methods keep what is common to all.

    Raises ValidationError.
    """
    changes = _expand(changes)
    before = values.get("method")
    if "candidates" in changes or changes.get("method", before) != before:
        common = {name: value for name, value in values.items() if name in COMMON}
        values = common | {"preset": None}
    return parse_config(replace_values(values, changes))


def read_candidates(text: str) -> tuple[MethodConfig, ...]:
    """Names between commas, `all` methods, or a list in JSON. Raises ValidationError."""
    entries: object = [name.strip() for name in text.split(",")]
    if text.strip() == ALL:
        entries = list(METHODS)
    elif text.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):  # then it is no method's name either
            entries = json.loads(text)
    return parse_config({"candidates": entries}).candidates


def asks_for_probe(changes: Values) -> bool:
    """Whether they say that the learning rate shall be found out, also where it has been."""
    refine = changes.get("refine")
    return isinstance(refine, Mapping) and refine.get("lr") == "auto"


def methods_of(values: Values) -> tuple[str, ...]:
    """The names of the methods of stored parameters, of which some may not be installed here."""
    if "candidates" not in values:
        return (str(values.get("method", DEFAULT)),)
    return tuple(dict.fromkeys(str(each["method"]) for each in values["candidates"]))


COMMON = CommonConfig.model_fields.keys()


def flatten(values: Values, prefix: str = "") -> dict[str, Any]:
    """Nested parameters by their dotted names, as error messages call them; those of candidates, by
    their methods."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        elif name == "candidates":
            flat[name] = ", ".join(candidate["method"] for candidate in value)
            for candidate in value:
                own = {key: each for key, each in candidate.items() if key != "method"}
                flat |= flatten(own, f"{candidate['method']}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def find_changes(values: Values, kind: str) -> dict[str, Any]:
    """Of a model's stored parameters those that are not the default, by their dotted names."""
    try:
        config = check_augmentation(
            parse_config({"candidates": methods_of(values)}), find_kind(kind)
        )
    except (ValidationError, ConfigError):  # of a method or a kind that is not installed here
        return flatten(values)
    usual = flatten(config.model_dump(mode="json"))
    usual |= {"candidates": ", ".join(DEFAULT_CANDIDATES), "method": None}
    return {name: value for name, value in flatten(values).items() if usual.get(name) != value}


def _expand(values: Values) -> Values:
    """With what is meant by them, beside what they say: a preset's values, and those of
    refinement."""
    preset, refine = values.get("preset"), values.get("refine")
    meant: Values = PRESETS.get(preset, {}) if isinstance(preset, str) else {}
    if "candidates" in values:
        meant = {name: value for name, value in meant.items() if name in COMMON}
    if isinstance(refine, Mapping):
        meant = replace_values(meant, {"refine": RefineConfig.implied(refine)})
    return replace_values(meant, values)


def _own(values: Values) -> dict[str, Any]:
    """What is no parameter of all candidates."""
    return {n: value for n, value in values.items() if n not in COMMON and n != "candidates"}


def _parse_candidates(entries: object, problems: list[InitErrorDetails], flat: bool) -> object:
    """Each as its method's own class; what is wrong is added to the problems."""
    if not isinstance(entries, list | tuple):
        return entries
    parsed: list[MethodConfig] = []
    for number, entry in enumerate(entries):
        where: tuple[str | int, ...] = () if flat else ("candidates", number)
        try:
            candidate = _parse_candidate(entry)
        except ValidationError as error:
            problems += _restate(error, where)
            continue
        if message := _find_doubled(candidate, parsed):
            problems.append(_problem(message, {"method": candidate.method}, where, entry))
        parsed.append(candidate)
    return parsed if parsed or not entries else [MethodConfig(method=DEFAULT)]


def _find_strays(own: Values, candidates: object) -> list[InitErrorDetails]:
    """What stands beside several candidates, and is not common to all."""
    parsed = candidates if isinstance(candidates, list) else []
    return [
        _problem("{what}", {"what": _explain_stray(name, parsed)}, (name,), value)
        for name, value in own.items()
    ]


def _explain_stray(name: str, candidates: Iterable[MethodConfig]) -> str:
    if name == "method":
        return "it stands for one candidate alone: name it among the candidates"
    for candidate in candidates:
        if name in type(candidate).model_fields:
            whole = f'{{"method": "{candidate.method}", "{name}": …}}'
            return f"it belongs to one of the candidates: {whole}"
    if owners := _find_owners(name):
        return f"no candidate has such a parameter; it is one of {owners}"
    return "Extra inputs are not permitted"


def _find_owners(name: object) -> str:
    """The methods that have a parameter of this name."""
    return ", ".join(m.name for m in METHODS.values() if name in m.parameters.model_fields)


def _find_doubled(candidate: MethodConfig, others: Iterable[MethodConfig]) -> str | None:
    if candidate in others:
        return "{method} is given twice with the same parameters"
    remembers = METHODS[candidate.method].state is not None
    if remembers and any(other.method == candidate.method for other in others):
        return "{method} is given twice: it remembers something, and can do so only once"
    return None


def _parse_candidate(entry: object) -> MethodConfig:
    """Raises ValidationError."""
    if isinstance(entry, MethodConfig):
        return entry
    if isinstance(entry, str):
        entry = {"method": entry}
    method = _find_method(entry)
    try:
        config: MethodConfig = method.parameters.model_validate(entry)
    except ValidationError as error:
        found = [_restated(problem, (), _explain(problem, method)) for problem in error.errors()]
        raise ValidationError.from_exception_data(error.title, found) from error
    return config


def _find_method(entry: object) -> AnyMethod:
    """Raises ValidationError if there is none of the name, or none that can be loaded."""
    name: Any = entry.get("method", DEFAULT) if isinstance(entry, Mapping) else entry
    try:
        return METHODS[name]
    except Unloadable as error:
        problem = _problem("{why}", {"why": str(error)}, ("method",), name)
    except (KeyError, TypeError):  # TypeError: what cannot even be a name
        known = {"known": ", ".join(METHODS)}
        problem = _problem("there is no such method; there are {known}", known, ("method",), name)
    raise ValidationError.from_exception_data("FoldConfig", [problem])


def _explain(problem: ErrorDetails, method: AnyMethod) -> str:
    """What is wrong; of a parameter of other methods, whose it is."""
    if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
        name = problem["loc"][0]
        if name in COMMON:
            return f"{name} is the same for all candidates: it stands beside them"
        if owners := _find_owners(name):
            return f"{method.name} has no such parameter; it is one of {owners}"
    return problem["msg"]


def _restate(error: ValidationError, where: tuple[str | int, ...]) -> list[InitErrorDetails]:
    return [_restated(problem, where, problem["msg"]) for problem in error.errors()]


def _restated(
    problem: ErrorDetails, where: tuple[str | int, ...], message: str
) -> InitErrorDetails:
    """The same problem, at a place that may be elsewhere."""
    kind = PydanticCustomError(problem["type"], "{message}", {"message": message})
    return InitErrorDetails(type=kind, loc=(*where, *problem["loc"]), input=problem["input"])


def _problem(
    message: str, words: dict[str, Any], where: tuple[str | int, ...], value: object
) -> InitErrorDetails:
    kind = PydanticCustomError("no_such_method", message, words)
    return InitErrorDetails(type=kind, loc=where, input=value)
