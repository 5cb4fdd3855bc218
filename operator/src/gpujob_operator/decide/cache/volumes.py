"""The volumes that claims are bound to, by claim; and whose volumes changed."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpujob_operator.decide.cache.diff import ListDiff
from gpujob_operator.decide.model.snapshot import BoundVolume

# A namespace and a claim's name.
ClaimKey = tuple[str, str]


@dataclass(slots=True)
class Volumes:
    """`take` the lists one after the other."""

    _by_claim: dict[ClaimKey, dict[str, BoundVolume]] = field(
        default_factory=dict[ClaimKey, dict[str, BoundVolume]]
    )
    _diff: ListDiff[BoundVolume] = field(default_factory=lambda: ListDiff[BoundVolume]())

    def take(self, volumes: tuple[BoundVolume, ...]) -> set[ClaimKey]:
        """Takes over what was observed; returns the claims whose volumes came, changed or went."""
        new, gone = self._diff.take(volumes)
        for one in gone:
            of_claim = self._by_claim.get(_claim_of(one), {})
            if of_claim.get(one.name) is one:
                del of_claim[one.name]
            if not of_claim:
                self._by_claim.pop(_claim_of(one), None)
        for one in new:
            self._by_claim.setdefault(_claim_of(one), {})[one.name] = one
        return {_claim_of(one) for one in (*new, *gone)}

    def of(self, claims: Iterable[ClaimKey]) -> tuple[BoundVolume, ...]:
        """The volumes of these claims, by claim and name."""
        found = (self._by_claim.get(claim, {}) for claim in claims)
        return tuple(of_claim[name] for of_claim in found for name in sorted(of_claim))


def _claim_of(volume: BoundVolume) -> ClaimKey:
    return volume.namespace, volume.claim
