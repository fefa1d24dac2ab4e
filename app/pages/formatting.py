"""Numbers, sizes and times as people read them: the filters of the templates."""

from datetime import datetime

from registry.tables import utc_now

NARROW = "\u202f"  # a space that does not break
MINUS = "\u2212"
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
AGES = ((86_400, "day"), (3_600, "hour"), (60, "minute"))
LESS_THAN_SHOWN = 0.0005  # a tenth of a percentage point, rounded away


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}{NARROW}%"


def interval(ends: tuple[float, float] | None) -> str:
    """Where a share lies at 95 %."""
    return f"{100 * ends[0]:.0f}–{100 * ends[1]:.0f}{NARROW}%" if ends else ""


def progress(share: float) -> str:
    return f"{100 * share:.0f}{NARROW}%"


def change(difference: float | None) -> str:
    """The difference of two shares, in percentage points, with its sign."""
    if difference is None:
        return ""
    if abs(difference) < LESS_THAN_SHOWN:
        return "±0"
    return f"{100 * difference:+.1f}".replace("-", MINUS)


def decimal(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}".replace("-", MINUS)


def signed(value: float, digits: int = 3) -> str:
    """A difference."""
    return f"{value:+.{digits}f}".replace("-", MINUS)


def rate(value: float) -> str:
    """With the digits that it has, and no more."""
    return f"{value:g}"


def capitalize_first(text: str) -> str:
    """And leave the rest as it is."""
    return text[:1].upper() + text[1:]


def size(count: int | None) -> str:
    if count is None:
        return "–"
    value, unit = float(count), 0
    while value >= 1024 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    digits = 0 if unit == 0 or value >= 100 else 1
    return f"{value:.{digits}f}{NARROW}{UNITS[unit]}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 10:
        return f"{seconds:.2f}{NARROW}s"
    if seconds < 60:
        return f"{seconds:.0f}{NARROW}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    short = f"{minutes}{NARROW}min"
    return f"{hours}{NARROW}h {short}" if hours else f"{short} {rest}{NARROW}s"


def ago(moment: datetime) -> str:
    seconds = (utc_now() - moment).total_seconds()
    for length, unit in AGES:
        count = int(seconds // length)
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """1 version, 2 versions."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


FILTERS = {
    filter_.__name__: filter_
    for filter_ in (
        percent,
        interval,
        progress,
        change,
        decimal,
        rate,
        capitalize_first,
        signed,
        size,
        duration,
        ago,
        count,
    )
}
