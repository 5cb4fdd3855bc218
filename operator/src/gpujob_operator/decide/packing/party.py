"""Which jobs may share a GPU: parties of one namespace, or of one sharing group."""

from collections.abc import Iterable
from typing import NamedTuple

# The namespace or the sharing group of tenants that have different ones.
SEVERAL = -1


class Party(NamedTuple):
    """The owner of a job. Both are numbers from 0 on that stand for names."""

    namespace: int = 0
    group: int = 0


# The party of jobs that all share with each other.
ANYBODY = Party()


def common_party(parties: Iterable[Party]) -> Party:
    """Returns the namespace and the group that all parties have, `SEVERAL` if they differ.

    Returns `ANYBODY` without parties.
    """
    common: Party | None = None
    for party in parties:
        if common is None:
            common = party
        if common is party or common == party:
            continue
        common = Party(
            common.namespace if common.namespace == party.namespace else SEVERAL,
            common.group if common.group == party.group else SEVERAL,
        )
    return ANYBODY if common is None else common


def may_join(party: Party, tenants: Party) -> bool:
    """Returns whether a job of the party may share a GPU with tenants that have this in common."""
    return party.namespace == tenants.namespace or party.group == tenants.group
