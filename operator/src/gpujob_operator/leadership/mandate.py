"""Whether this process may act: it holds the Lease, and its cache is complete."""

from dataclasses import dataclass

from gpujob_operator.leadership.cache_sync import CacheSync
from gpujob_operator.leadership.lease import Leadership


@dataclass(frozen=True, slots=True)
class Mandate:
    """Cheap enough to ask before every write."""

    leadership: Leadership
    sync: CacheSync

    def leads(self) -> bool:
        return self.leadership.leads

    def may_act(self) -> bool:
        """True if everything was listed since this process began to lead. Before that it does not
        know which attempts are in force.
        """
        return self.leadership.leads and self.sync.synced

    def missing(self) -> list[str]:
        """What this process lacks in order to act, for people."""
        parts = {"the Lease": self.leadership.leads, "a complete cache": self.sync.synced}
        return [name for name, is_there in parts.items() if not is_there]
