"""Which source each parameter tensor last came from, carried from version to version."""

from __future__ import annotations

from collections.abc import Mapping

from grasp_core.config import Frozen

NEGLIGIBLE = 1e-6  # a share below one in a million is forgotten, so that the record stays small


class Provenance(Frozen):
    """For every parameter tensor, the share of it that each source gave.

    A transfer of share s takes s from every earlier owner in proportion: exact where whole tensors
    are copied, the expectation where parts of them are. Refinement does not change an owner.
    """

    shares: dict[str, dict[str, float]] = {}  # parameter: {source: share}; sums to at most 1

    def after_transfer(self, source: str, transferred: Mapping[str, float]) -> Provenance:
        """The record after `source` gave `transferred[parameter]` of each parameter."""
        return Provenance(
            shares={
                name: _hand_over(self.shares.get(name, {}), source, share)
                for name, share in transferred.items()
            }
        )

    def totals(self, sizes: Mapping[str, int]) -> dict[str, float]:
        """Share of all parameters that each source gave, weighted by tensor size."""
        total = sum(sizes.values())
        given: dict[str, float] = {}
        for name, owners in self.shares.items():
            for source, share in owners.items():
                given[source] = given.get(source, 0.0) + share * sizes.get(name, 0) / total
        return given


def _hand_over(owners: Mapping[str, float], source: str, share: float) -> dict[str, float]:
    left = {owner: held * (1.0 - share) for owner, held in owners.items()}
    left[source] = left.get(source, 0.0) + share
    return {owner: held for owner, held in left.items() if held > NEGLIGIBLE}
