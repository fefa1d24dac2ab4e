"""SVG as text: elements that escape whatever they are given.

Colours come from classes, which the style sheet knows in light and dark; nothing has a style of its
own, so that pages can forbid inline styles.
"""

from collections.abc import Iterable

from markupsafe import Markup, escape

Attribute = str | float | None


def element(tag: str, *children: str, **attributes: Attribute) -> Markup:
    """One element. `class_` is class, `text_anchor` text-anchor; None leaves an attribute out."""
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if not children:
        return Markup(f"<{tag}{named}/>")  # noqa: S704 - escaped above
    inner = "".join(escape(child) for child in children)
    return Markup(f"<{tag}{named}>{inner}</{tag}>")  # noqa: S704


def drawing(
    width: float,
    height: float,
    title: str,
    about: str,
    children: Iterable[str],
    **attributes: Attribute,
) -> Markup:
    """A picture with a name and a description, for those who do not see it."""
    return element(
        "svg",
        element("title", title),
        element("desc", about),
        *children,
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        **attributes,
    )


def number(value: float) -> str:
    """Two decimals are less than any screen shows."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _value(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else number(value)
