"""A page for each method, from its declaration, and one that lists them."""

from grasp_core.methods import METHODS
from grasp_core.methods.declaration import AnyMethod
from scripts.reference.markdown import code, opening, parameters, sections, table

ORIGIN = "grasp_core/methods"
INTRODUCTION = """
The ways to fold a source into a merged model. Each can be one of a fold's
[candidates](merge.md#mergecandidates), alone or beside others. Which of them your data prefers,
`grasp merge --candidates all` answers on your machine, and `grasp push MODEL FILE --dry-run --wait
--candidates all` on the service, with one table.

θ is the merged model, θ₀ the base of all sources, θk a source, τ = θk - θ₀ its task vector and k
the number of sources. Those that have a state fold source by source what others compute of all
sources at once: the sums that they keep have a constant size, and but for rounding the result is
the same, in any order (`opcm` alone is made for one order, the order of arrival). Refinement, which
follows, never enters a state. Rows of the head are matched by class name, and merged from the
sources that know the class. Batch-norm statistics are averaged, and then measured on the target
(`norm_stats`).
"""
PROVENANCE = {
    "exact": "Provenance is exact: which source gave which share of each parameter.",
    "estimate": "Provenance is an estimate: what this source gave is known, and is taken from all"
    " earlier sources in proportion, while a new source may really change what each of them counts"
    " for.",
}
NEEDS = {
    "base": "the base of its sources",
    "gradients": "gradients on the target",
    "history": "to have merged all earlier sources itself",
}


def page() -> str:
    rows = [
        (
            f"[`{method.name}`](methods/{method.name}.md)",
            method.summary,
            _needs(method) or "nothing",
            method.remembers or "nothing",
        )
        for method in METHODS.values()
    ]
    return sections(
        opening("Methods", ORIGIN),
        INTRODUCTION.strip(),
        table(("method", "what it does", "needs", "its state holds"), rows),
    )


def method_page(method: AnyMethod) -> str:
    needs = _needs(method)
    fields = method.parameters.model_json_schema()["properties"]
    own = {name: schema for name, schema in fields.items() if name != "method"}
    facts = [
        ("formula", method.formula),
        ("paper", f"<{method.paper}>" if method.paper else ""),
        ("needs", needs),
        ("its state holds", f"{method.remembers} (`{method.state_name}`)" if method.state else ""),
    ]
    return sections(
        opening(code(method.name), f"{ORIGIN}/{method.name}.py"),
        method.summary,
        table(("", ""), [fact for fact in facts if fact[1]]),
        f'## Parameters of `{{"method": "{method.name}"}}`',
        parameters(own) or "It has none of its own.",
        "## Provenance",
        PROVENANCE[method.provenance],
    )


def _needs(method: AnyMethod) -> str:
    return "; ".join(words for need, words in NEEDS.items() if getattr(method.needs, need))
