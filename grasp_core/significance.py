"""How surprising a count would be if only chance were at work: exact, for any count."""

from __future__ import annotations

import math

Z = 1.959964  # of the normal distribution, beyond which 5 % lie
NEGLIGIBLE = 1e-17  # of the sum so far: further terms no longer change it


def upper_tail(count: int, at_least: int, chance: float = 0.5) -> float:
    """P(X ≥ at_least) for X successes in `count` independent tries."""
    if at_least <= 0:
        return 1.0
    if at_least > count:
        return 0.0
    if at_least <= count * chance:  # the larger tail: one minus the other, which is summed exactly
        return 1.0 - upper_tail(count, count - at_least + 1, 1.0 - chance)
    term = total = math.exp(_log_probability(count, at_least, chance))
    for k in range(at_least, count):
        term *= (count - k) / (k + 1) * chance / (1 - chance)
        total += term
        if term < total * NEGLIGIBLE:
            break
    return min(total, 1.0)


def lower_tail(count: int, at_most: int, chance: float = 0.5) -> float:
    """P(X ≤ at_most) for X successes in `count` independent tries."""
    return upper_tail(count, count - at_most, 1.0 - chance)


def paired_p_value(lost: int, gained: int) -> float:
    """One-sided exact sign test (McNemar's), of two models on the same examples.

    `lost` examples are right under the first model only, `gained` under the second only. If neither
    were better, each of them would be as likely to be one as the other: how often would chance
    alone then lose at least as many?
    """
    return upper_tail(lost + gained, lost)


def wilson(share: float, count: int) -> tuple[float, float]:
    """Where, at 95 %, the true share lies of which `count` examples have shown `share` (Wilson)."""
    middle = share + Z * Z / (2 * count)
    width = Z * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    scale = 1 + Z * Z / count
    return max(0.0, (middle - width) / scale), min(1.0, (middle + width) / scale)


def smallest_refused(count: int, limit: float, significance: float, tries: int = 1) -> int | None:
    """How many of `count` examples must be lost, and none gained, for a drop to be beyond `limit`
    and, in one of so many tries, beyond chance; None: no drop is."""
    losses = range(max(1, math.floor(limit * count)), count + 1)  # fewer are not beyond the limit
    return next(
        (
            lost
            for lost in losses
            if lost / count > limit and tries * paired_p_value(lost, 0) <= significance
        ),
        None,
    )


def _log_probability(count: int, k: int, chance: float) -> float:
    """log P(X = k), for 0 < chance < 1."""
    ways = math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
    return ways + k * math.log(chance) + (count - k) * math.log1p(-chance)
